"""Health and metrics of a coordinator or a silo over HTTP: /healthz, /readyz and /metrics."""

import io
import ipaddress
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Annotated, Any, get_type_hints

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import fedpower
from fedpower.exceptions import InputError
from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE
from fedpower.federation.certificates import days_left, read_certificate

logger = logging.getLogger(__name__)

Address = tuple[str, int]
Answer = Callable[[str], tuple[int, str, bytes]]
"""Returns status, kind and content for a path; without a kind, an error."""

_MOST_BYTES, _LONGEST_S = 16 * 2**10, 2.0  # of a request
_MOST_AT_ONCE = 16  # requests; others wait for their turn
_STARTED = time.monotonic()
_STOP_S = 0.1  # the server ends within
# Of another name, a page of somebody else could have made this machine the address
_HERE = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a process knows about itself; nothing that depends on rows.

    Each field that is annotated is a metric, unless it is None; a mapping gives a number for each name.
    """

    party: str
    connected: Annotated[Mapping[str, bool], "1 if this party is connected, else 0."]
    last_contact_timestamp_seconds: Annotated[
        Mapping[str, float], "Unix time when a party was last connected."
    ]
    certificate_days_left: Annotated[Mapping[str, int], "Whole days until a certificate ends."]
    round: Annotated[int | None, "Latest round of the latest run, counted from 0."] = None
    epsilon_spent: Annotated[float | None, "Epsilon that the ledger has recorded."] = None
    epsilon_left: Annotated[float | None, "Epsilon that the ledger still allows."] = None
    studies_waiting: Annotated[int | None, "Studies that wait for approval."] = None
    can_answer: bool = True

    @property
    def problem(self) -> str | None:
        """Why it cannot take part in a study; a coordinator does not need any silo for that."""
        for name, days in self.certificate_days_left.items():
            if days < 0:
                return f"the certificate of the {name} has ended; see `fedpower node status`"
        if not self.can_answer:
            return "ledger and audit log do not agree; see `fedpower ledger verify`"
        there = self.connected.get("coordinator", True)
        return None if there else "the coordinator is not connected"


_MEANINGS = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Facts, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


class _Metrics(Collector):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        info = GaugeMetricFamily("fedpower_info", "Party and version.", labels=("party", "version"))
        info.add_metric((self._facts.party, fedpower.__version__), 1)
        yield info
        ready = self._facts.problem is None
        yield GaugeMetricFamily("fedpower_ready", "1 if it can take part in a study, else 0.", ready)
        yield GaugeMetricFamily("fedpower_uptime_seconds", "Time since start.", time.monotonic() - _STARTED)
        for field, meaning in _MEANINGS.items():
            name, value = f"fedpower_{field}", getattr(self._facts, field)
            if isinstance(value, Mapping):
                metric = GaugeMetricFamily(name, meaning, labels=("name",))
                for each, number in value.items():
                    metric.add_metric((each,), number)
                yield metric
            elif value is not None:
                yield GaugeMetricFamily(name, meaning, value)


def certificate_days_left(tls: Path) -> dict[str, int]:
    """Return the whole days until the certificates in a kit's folder end; negative once they have ended."""
    files = {"party": CERTIFICATE, "authority": AUTHORITY_CERTIFICATE}
    return {name: days_left(read_certificate(tls / file)) for name, file in files.items()}


def serve_health(address: Address, facts: Callable[[], Facts]) -> ThreadingTCPServer:
    """Answer requests for health and metrics in threads, from now on."""
    try:
        server = Server(address, lambda path: _answer(path, facts))
    except OSError as error:
        must = f"health and metrics must be able to listen at {address[0]}:{address[1]}"
        problem = (error.strerror or str(error)).lower()
        hint = "choose another address with --health HOST:PORT, or add --no-health"
        raise InputError(f"{must}, got {problem}; {hint}") from None
    logger.info("health and metrics are at http://%s:%s/metrics", *server.server_address)
    return server


def _answer(path: str, facts: Callable[[], Facts]) -> tuple[int, str, bytes]:
    text = "text/plain; charset=utf-8"
    if path == "/healthz":
        return 200, text, b"alive\n"
    if path == "/readyz":
        problem = facts().problem
        return 503 if problem else 200, text, f"{problem or 'ready'}\n".encode()
    if path == "/metrics":
        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(_Metrics(facts()))
    return 404, "", b""


class Server(ThreadingTCPServer):
    """Answers a few requests at once; unlike HTTPServer, it asks no name server for its own name."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 4 * _MOST_AT_ONCE
    _places = threading.Semaphore(_MOST_AT_ONCE)

    def __init__(self, address: Address, answer: Answer, **headers: str) -> None:
        super().__init__(address, _Handler)
        self.answer, self.headers = answer, headers
        threading.Thread(target=self.serve_forever, args=(_STOP_S,), name="http", daemon=True).start()

    def process_request(self, *request: Any) -> None:
        self._places.acquire()
        super().process_request(*request)

    def process_request_thread(self, *request: Any) -> None:
        try:
            super().process_request_thread(*request)
        finally:
            self._places.release()

    def handle_error(self, *request: Any) -> None:
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            logger.exception("a request over HTTP failed")


class _Handler(BaseHTTPRequestHandler):
    """Reads a request without its body."""

    server: Server
    server_version, sys_version = "fedpower", ""

    def setup(self) -> None:
        """Read a request up to its empty line; drop one that is long or slow."""
        super().setup()
        head, ends = b"", time.monotonic() + _LONGEST_S
        while b"\r\n\r\n" not in head:
            self.connection.settimeout(max(0.001, ends - time.monotonic()))
            more = self.connection.recv(_MOST_BYTES)
            head += more
            if not more or len(head) > _MOST_BYTES:
                raise ConnectionError
        self.connection.settimeout(_LONGEST_S)
        self.rfile = io.BytesIO(head)

    def do_GET(self) -> None:
        here = ipaddress.ip_address(str(self.server.server_address[0])).is_loopback
        if here and not _HERE.fullmatch(self.headers.get("Host", "")):
            status, kind, content = 403, "", b""
        else:
            status, kind, content = self.server.answer(self.path)
        if not kind:
            self.send_error(status)
            return
        self.send_response(status)
        own = {"Content-Type": kind, "Content-Length": str(len(content))}
        for name, value in (own | self.server.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: monitors and pages ask every few seconds."""
