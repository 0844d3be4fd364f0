"""NVIDIA FLARE's transport: size-limited messages between the parties of a study, over mutual TLS."""

import importlib.util
import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
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

from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver
from nvflare.fuel.f3.drivers.net_utils import parse_url
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.f3.message import Message, MessageReceiver
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from fedpower.exceptions import InputError
from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE, KEY

logger = logging.getLogger(__name__)

ASK, ANSWER, CALL, REPLY = "ask", "answer", "call", "reply"
"""Coordinator to silo and back; runner to coordinator and back."""

APP = 26  # FLARE's number for the program that a message is for; messages with another are refused
FRAME_BYTES = 4096  # more than FLARE adds to a message: a prefix, two headers and protobuf's field
# How often each end of a connection asks whether the other is there, and how long it waits
_PING_MS = 10_000
_MOST_CONNECTIONS = 4  # of one party at a time: its own, and old ones that are about to close
_MOST_REFUSALS = 50  # after so many refused messages a connection is closed
_TYPE_BYTE = 6  # where a frame has its type
_GREETINGS = (bytes([Types.HELLO]), bytes([Types.READY]))

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
        # A peer's name must be the common name of the certificate that its connection showed.
        names = {peer: peer for peer in accepts}
        super().__init__(Endpoint(name), CellIdentityResolver(name, exact_identity_map=names))
        self.frame_mgr_executor = _SameThread()
        self._accepts = dict(accepts)
        self._most_bytes = most_bytes
        self._on_message = on_message
        self._on_change = on_change
        self._refusals: Counter[str] = Counter()
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
        self._add(f"grpc://{address}:{port}", Mode.PASSIVE, tls, "server")

    def connect(self, host: str, port: int, tls: Path) -> None:
        self._add(f"grpc://{host}:{port}", Mode.ACTIVE, tls, "client")

    def send(self, peer: str, kind: str, number: int, content: bytes) -> bool:
        try:
            if endpoint := self.find_endpoint(peer):
                self.send_message(endpoint, APP, {"kind": kind, "number": number}, content)
        except CommError as error:
            logger.info("a message to %s was not sent: %s", peer, error)
            return False
        return endpoint is not None

    def connected(self) -> list[str]:
        endpoints = (self.find_endpoint(peer) for peer in self._accepts)
        return [point.name for point in endpoints if point and point.state == EndpointState.READY]

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
        if sfm_conn.sfm_endpoint is None and not greeting:
            self._refuse(sfm_conn.conn, _peer_cn(sfm_conn.conn) or "a stranger", "it did not identify itself")
        else:
            super().process_frame_task(sfm_conn, frame)

    def handle_new_connection(self, connection: Connection) -> None:
        with self.lock:
            names = [_peer_cn(open_one.conn) for open_one in self.sfm_conns.values()]
        name = _peer_cn(connection)
        if name is not None and names.count(name) >= _MOST_CONNECTIONS:
            self._refuse(connection, name, "it has too many connections", close=True)
        else:
            super().handle_new_connection(connection)

    def state_change(self, changed: Connection | Endpoint) -> None:
        """Handle the change of a connection or of a peer: FLARE calls this for both."""
        if isinstance(changed, Connection):
            super().state_change(changed)
        elif self._on_change is not None and changed.name in self._accepts:
            self._on_change(changed.name, changed.state == EndpointState.READY)

    def _problem_with(self, peer: str, app_id: int, message: Message) -> str | None:
        """Return why a message must be refused; nothing of it is quoted."""
        headers, kind = message.headers, self._accepts.get(peer)
        if kind is None:
            return "it is not a party that may send messages here"
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
            context = getattr(connection, "context", None)
            if context is not None:
                context.cancel()
            # FLARE's own close waits for the peer to go.
            threading.Thread(target=connection.close, name="hang up", daemon=True).start()

    def _add(self, url: str, mode: Mode, tls: Path, side: str) -> None:
        params = {
            **parse_url(url),
            DriverParams.SECURE.value: True,
            DriverParams.CONNECTION_SECURITY.value: "mtls",
            DriverParams.CA_CERT.value: str(tls / AUTHORITY_CERTIFICATE),
            f"{side}_cert": str(tls / CERTIFICATE),
            f"{side}_key": str(tls / KEY),
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
        self.add_connector(driver, params, mode)
        self.start()


class _SameThread:
    """Runs what FLARE would queue, at once: an executor without a queue."""

    def submit(self, task: Callable[..., None], *args: Any) -> Future[None]:
        task(*args)
        return Future()

    def shutdown(self, wait: bool = True) -> None:
        pass


def _peer_cn(connection: Connection) -> str | None:
    name: str | None = connection.get_conn_properties().get(DriverParams.PEER_CN.value)
    return name
