"""NVIDIA FLARE's transport: size-limited messages between the parties of a study, over mutual TLS."""

import contextlib
import importlib.util
import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if "nvflare" not in sys.modules:
    # FLARE's package imports all of FLARE at once. Its transport does without: a third of a second and
    # ten megabytes less, and what could run a command is not loaded.
    package = importlib.util.find_spec("nvflare")
    if package is not None:
        sys.modules["nvflare"] = importlib.util.module_from_spec(package)

import grpc
from cryptography import x509
from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver
from nvflare.fuel.f3.drivers.net_utils import parse_url
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.f3.message import Message, MessageReceiver
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from fedpower.exceptions import InputError
from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE, KEY, REVOKED
from fedpower.federation.certificates import (
    await_pair,
    coordinator_roots,
    pair_fits,
    revoked_serials,
    warnings,
)

logger = logging.getLogger(__name__)

ASK, ANSWER, CALL, REPLY = "ask", "answer", "call", "reply"
"""Coordinator to silo and back; runner to coordinator and back."""

APP = 26  # FLARE's number for the program that a message is for; messages with another are refused
FRAME_BYTES = 4096  # more than FLARE adds to a message: a prefix, two headers and protobuf's field
# How often each end of a connection asks whether the other is there, and how long it waits
_PING_MS = 10_000
_MOST_CONNECTIONS = 4  # of one party at a time: its own, and old ones that are about to close
_NO_PARTY = "it is not a party that may send messages here"
_LONGEST_NAME = 64  # of a stranger, in the log
_MOST_REFUSALS = 50  # after so many refused messages a connection is closed
_TYPE_BYTE = 6  # where a frame has its type
_CREDENTIALS = "fedpower credentials"  # the parameter with what makes a connection's credentials
_SERIAL = "fedpower serial"  # the property with the number of a peer's certificate
_EVERY_SERIAL = 2**160  # more than the number of any certificate
_WATCH_S = 5.0  # how often the files of a kit are looked at
_WARN_EACH_S = 86_400.0
_REPEAT_EACH_S = 3_600.0
_GREETINGS = (bytes([Types.HELLO]), bytes([Types.READY]))


def _ours_first(flares: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda params: params[_CREDENTIALS]() if _CREDENTIALS in params else flares(params)


# FLARE's driver reads certificates from files, a server's only once, and no list of revoked ones.
for name in ("get_grpc_client_credentials", "get_grpc_server_credentials"):
    setattr(grpc_driver, name, _ours_first(getattr(grpc_driver, name)))

# Takes a peer's name, and the kind, number and content of its message
Handler = Callable[[str, str, int, bytes], None]


class Links(ConnManager, MessageReceiver, EndpointMonitor):
    """The connections of one party."""

    def __init__(
        self,
        name: str,
        *,
        accepts: Mapping[str, str],
        most_bytes: int,
        on_message: Handler,
        on_change: Callable[[str, bool], None] | None = None,
    ) -> None:
        # What a peer's name begins with must be the common name of the certificate that it showed.
        names = {peer: peer.partition(".")[0] for peer in accepts}
        super().__init__(Endpoint(name), CellIdentityResolver(name, exact_identity_map=names))
        self.frame_mgr_executor = _SameThread()
        self._accepts = dict(accepts)
        self._most_bytes = most_bytes
        self._on_message = on_message
        self._on_change = on_change
        self._refusals: Counter[str] = Counter()
        self._left: dict[str, float] = {}  # when a peer's connection ended
        self._warned: dict[str, float] = {}
        self._used: list[int] = []  # the files that it connected or listens with
        # One receiver for every program, so that what is for another is refused and logged
        self.receivers = SimpleNamespace(get=lambda *_: self)
        self.add_endpoint_monitor(self)

    def listen(self, host: str, port: int, tls: Path) -> None:
        address = host if host in ("localhost", "127.0.0.1", "::1") else "0.0.0.0"  # noqa: S104
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:  # FLARE does not report a port that is taken
            socket.create_server((address, port), family=family).close()
        except OSError as error:
            problem = (error.strerror or str(error)).lower()
            must = f"port {port} of [coordinator] in the study must be free for the coordinator"
            raise InputError(f"{must}, got {problem}") from None

        def credentials() -> Any:
            await_pair(tls)
            self._used = self._files(KEY, CERTIFICATE)
            pair = (tls / KEY).read_bytes(), (tls / CERTIFICATE).read_bytes()
            return grpc.ssl_server_credentials(
                [pair], (tls / AUTHORITY_CERTIFICATE).read_bytes(), require_client_auth=True
            )

        self._add(f"grpc://{address}:{port}", Mode.PASSIVE, tls, credentials)

    def connect(self, host: str, port: int, tls: Path) -> None:
        def credentials() -> Any:
            self._used = self._files(KEY, CERTIFICATE, REVOKED)  # first, so that no change of them is missed
            try:
                roots = coordinator_roots(host, port, tls)
            except InputError as error:
                self._warn(str(error))
                raise
            return grpc.ssl_channel_credentials(
                roots, (tls / KEY).read_bytes(), (tls / CERTIFICATE).read_bytes()
            )

        self._add(f"grpc://{host}:{port}", Mode.ACTIVE, tls, credentials)

    def send(self, peer: str, kind: str, number: int, content: bytes) -> bool:
        try:
            if endpoint := self.find_endpoint(peer):
                self.send_message(endpoint, APP, {"kind": kind, "number": number}, content)
        except CommError as error:
            logger.debug("%s", error)
            logger.info("a message to %s was not sent: it is not connected", peer)
            return False
        return endpoint is not None

    def connected(self) -> list[str]:
        endpoints = (self.find_endpoint(peer) for peer in self._accepts)
        return [point.name for point in endpoints if point and point.state == EndpointState.READY]

    def last_contact(self) -> dict[str, float]:
        """Return when each peer was connected last, in Unix time: now, if it still is."""
        return self._left | dict.fromkeys(self.connected(), time.time())

    def process_message(
        self, endpoint: Endpoint, connection: Connection, app_id: int, message: Message
    ) -> None:
        peer, headers = endpoint.name, message.headers
        if problem := self._problem_with(peer, app_id, message):
            self._refuse(connection, peer, problem)
        else:
            self._on_message(peer, headers["kind"], headers["number"], message.payload or b"")

    def process_frame_task(self, sfm_conn: SfmConnection, frame: Any) -> None:
        """Read a frame; data of a connection that has not identified itself are refused."""
        greeting = frame[_TYPE_BYTE : _TYPE_BYTE + 1] in _GREETINGS
        if (sfm_conn.sfm_endpoint is None and not greeting) or (greeting and len(frame) > FRAME_BYTES):
            self._refuse(sfm_conn.conn, _peer_cn(sfm_conn.conn) or "a stranger", "it did not identify itself")
        else:
            super().process_frame_task(sfm_conn, frame)

    def update_endpoint(self, sfm_conn: SfmConnection, data: dict[str, Any]) -> None:
        """Take the peer that a connection says it is; others than our own parties are not remembered."""
        name = data.get(HandshakeKeys.ENDPOINT_NAME)
        if isinstance(name, str) and name in self._accepts:
            super().update_endpoint(sfm_conn, data)
        else:
            self._refuse(sfm_conn.conn, f"{name}"[:_LONGEST_NAME], _NO_PARTY)

    def handle_new_connection(self, connection: Connection) -> None:
        with self.lock:
            names = [_peer_cn(open_one.conn) for open_one in self.sfm_conns.values()]
        name = _peer_cn(connection)
        if name is not None and names.count(name) >= _MOST_CONNECTIONS:
            self._refuse(connection, name, "it has too many connections", close=True)
        elif _serial(connection) in self._revoked():
            self._warn(f"refused a connection of {name}: its certificate is revoked")
            _hang_up(connection)
        else:
            super().handle_new_connection(connection)

    def state_change(self, changed: Connection | Endpoint) -> None:
        """Handle the change of a connection or of a peer: FLARE calls this for both."""
        if isinstance(changed, Connection):
            super().state_change(changed)
        elif changed.name in self._accepts:
            self._left[changed.name] = time.time()
            if self._on_change is not None:
                self._on_change(changed.name, changed.state == EndpointState.READY)

    def _problem_with(self, peer: str, app_id: int, message: Message) -> str | None:
        """Return why a message must be refused; nothing of it is quoted."""
        headers, kind = message.headers, self._accepts.get(peer)
        if kind is None:
            return _NO_PARTY
        if app_id != APP:
            return "its message is for FLARE's own programs, which do not run here"
        if not isinstance(headers, dict) or headers.keys() != {"kind", "number"}:
            return "its headers are not those of a fedpower message"
        if headers["kind"] != kind:
            return f"it may only send messages of the kind {kind!r}"
        if type(headers["number"]) is not int or not 0 <= headers["number"] < 2**63:
            return "its message has no number"
        return None

    def _refuse(self, connection: Connection, peer: str, problem: str, *, close: bool = False) -> None:
        self._refusals[connection.name] += 1
        count = self._refusals[connection.name]
        if count in (1, _MOST_REFUSALS):
            logger.warning("refused a message of %s: %s", peer, problem)
        if close or count >= _MOST_REFUSALS:
            self._refusals.pop(connection.name, None)
            _hang_up(connection)

    def _warn(self, sentence: str) -> None:
        """Log a sentence once an hour; a party that is refused tries again every few seconds."""
        now = time.monotonic()
        if now >= self._warned.get(sentence, now):
            self._warned[sentence] = now + _REPEAT_EACH_S
            logger.warning("%s", sentence)

    def _revoked(self) -> Container[int | None]:
        """Return the numbers of revoked certificates; if the list cannot be read, these are all."""
        try:
            return revoked_serials(self._tls)
        except (InputError, OSError) as error:
            self._warn(f"refused all connections: {error}")
            return range(_EVERY_SERIAL)

    def _watch(self) -> None:
        """Warn of certificates that end soon, and use new files: connect, or listen, again with them.

        gRPC's own way to change a server's certificate crashes where two parties connect at once.
        """
        warn_at, warned_of = 0.0, list[int]()
        while not self.stopped:
            with contextlib.suppress(InputError, OSError):  # which each new connection reports
                held = self._files(CERTIFICATE, AUTHORITY_CERTIFICATE)
                if time.monotonic() >= warn_at or held != warned_of:
                    warn_at, warned_of = time.monotonic() + _WARN_EACH_S, held
                    for sentence in warnings(self._tls):
                        logger.warning("%s", sentence)
                server = self._driver.server
                files = (KEY, CERTIFICATE) if server else (KEY, CERTIFICATE, REVOKED)
                changed, revoked = self._files(*files) != self._used, self._revoked()
                if changed and server and pair_fits(self._tls):
                    logger.info("listening again, with another key or certificate")
                    server.grpc_server.stop(grace=0)  # FLARE's connector makes another server
                with self.lock:
                    lines = [open_one.conn for open_one in self.sfm_conns.values()]
                for line in lines:
                    is_old = changed and line.connector.mode == Mode.ACTIVE
                    if is_old or _serial(line) in revoked:
                        logger.info("closed a connection, because key, certificate or list have changed")
                        _hang_up(line)
            time.sleep(_WATCH_S)

    def _files(self, *names: str) -> list[int]:
        paths = [self._tls / name for name in names]
        return [path.stat().st_mtime_ns for path in paths if path.exists()]

    def _add(self, url: str, mode: Mode, tls: Path, credentials: Callable[[], Any]) -> None:
        params = {
            **parse_url(url),
            DriverParams.SECURE.value: True,
            DriverParams.CONNECTION_SECURITY.value: "mtls",
            _CREDENTIALS: credentials,
        }
        driver = GrpcDriver()
        # Each connection occupies a worker: no party must be able to take all of them.
        driver.max_workers = 16 + 2 * _MOST_CONNECTIONS * len(self._accepts)
        driver.options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", self._most_bytes + FRAME_BYTES),
            ("grpc.max_metadata_size", 8192),
            ("grpc.so_reuseport", 0),
            # A machine that vanishes is noticed within seconds, also between questions.
            ("grpc.keepalive_time_ms", _PING_MS),
            ("grpc.keepalive_timeout_ms", _PING_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS // 2),
        ]
        self._tls, self._driver = tls, driver
        self.add_connector(driver, params, mode)
        self.start()
        threading.Thread(target=self._watch, name="certificates", daemon=True).start()


class _SameThread:
    """Runs what FLARE would queue, at once: an executor without a queue."""

    def submit(self, task: Callable[..., None], *args: Any) -> Future[None]:
        task(*args)
        return Future()

    def shutdown(self, wait: bool = True) -> None:
        pass


def _hang_up(connection: Connection) -> None:
    context = getattr(connection, "context", None)
    if context is not None:
        context.cancel()
    # FLARE's own close waits for the peer to go.
    threading.Thread(target=connection.close, name="hang up", daemon=True).start()


def _serial(connection: Connection) -> int | None:
    """Return the number of the certificate that a client has shown; a server's is checked beforehand."""
    known: dict[str, Any] = connection.get_conn_properties()
    if connection.connector.mode == Mode.PASSIVE and _SERIAL not in known:
        (shown,) = connection.context.auth_context()["x509_pem_cert"]
        known[_SERIAL] = x509.load_pem_x509_certificate(shown).serial_number
    return known.get(_SERIAL)


def _peer_cn(connection: Connection) -> str | None:
    name: str | None = connection.get_conn_properties().get(DriverParams.PEER_CN.value)
    return name
