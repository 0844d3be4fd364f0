"""Health and metrics: what a monitor reads, what is refused, and a dashboard of what there is."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
from ground import WAIT_S, Ground, wait_for
from prometheus_client.parser import text_string_to_metric_families
from studies import write_study

import fedpower
from fedpower.exceptions import InputError
from fedpower.federation import TLS, health
from fedpower.federation.health import Facts, certificate_days_left, serve_health
from fedpower.federation.kits import AUTHORITY, COORDINATOR, make_kits
from fedpower.federation.local import LEDGER_CAP, free_port
from fedpower.federation.processes import start_party

ROOT = Path(__file__).parents[2]
NORTH = Facts(
    party="north",
    connected={"coordinator": True},
    last_contact_timestamp_seconds={"coordinator": 1.75e9},
    certificate_days_left={"party": 364, "authority": 3649},
    round=3,
    epsilon_spent=1.0,
    epsilon_left=2.0,
    studies_waiting=1,
)


class Monitor:
    """Asks for health and metrics at an address, as Prometheus does."""

    def __init__(self, host: str, port: int) -> None:
        self.address = host, port

    def ask(self, path: str, method: str = "GET", **more: object) -> tuple[int, str]:
        client = HTTPConnection(*self.address, timeout=10)
        client.request(method, path, **more)
        with client.getresponse() as answer:
            return answer.status, answer.read().decode()

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return the numbers by their names and labels."""
        status, text = self.ask("/metrics")
        assert status == 200
        families = text_string_to_metric_families(text)
        return {
            (each.name, *each.labels.values()): each.value for family in families for each in family.samples
        }


class Served(Monitor):
    """A server of health and metrics, and the facts that it has now."""

    def __init__(self) -> None:
        self.facts = NORTH
        self.server = serve_health(("127.0.0.1", 0), lambda: self.facts)
        super().__init__(*self.server.server_address)

    def change(self, **facts: object) -> None:
        self.facts = msgspec.structs.replace(self.facts, **facts)

    def send(self, *content: bytes) -> socket.socket:
        stream = socket.create_connection(self.address, timeout=10)
        for part in content:
            stream.sendall(part)
        return stream


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def served(server) -> Served:
    server.facts = NORTH
    return server


def test_a_party_is_alive_and_ready_and_shows_its_numbers(served):
    assert served.ask("/healthz") == (200, "alive\n")
    assert served.ask("/readyz") == (200, "ready\n")
    metrics = served.metrics()
    uptime = metrics.pop(("fedpower_uptime_seconds",))
    assert 0 < uptime < 3600
    assert metrics == {
        ("fedpower_info", "north", fedpower.__version__): 1,
        ("fedpower_ready",): 1,
        ("fedpower_connected", "coordinator"): 1,
        ("fedpower_last_contact_timestamp_seconds", "coordinator"): 1.75e9,
        ("fedpower_certificate_days_left", "party"): 364,
        ("fedpower_certificate_days_left", "authority"): 3649,
        ("fedpower_round",): 3,
        ("fedpower_epsilon_spent",): 1,
        ("fedpower_epsilon_left",): 2,
        ("fedpower_studies_waiting",): 1,
    }


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"connected": {"coordinator": False}}, "the coordinator is not connected"),
        (
            {"certificate_days_left": {"party": -1, "authority": 9}},
            "the certificate of the party has ended; see `fedpower node status`",
        ),
    ],
)
def test_a_party_that_cannot_take_part_says_why_in_one_sentence(served, facts, sentence):
    served.change(**facts)
    assert served.ask("/readyz") == (503, f"{sentence}\n")
    assert served.ask("/healthz")[0] == 200
    assert served.metrics()["fedpower_ready",] == 0


def test_a_coordinator_is_ready_without_silos_and_has_no_budget(served):
    served.facts = Facts(
        party="coordinator",
        connected={"north": True, "south": False},
        last_contact_timestamp_seconds={"north": 1.75e9},
        certificate_days_left={"party": 3},
    )
    assert served.ask("/readyz")[0] == 200
    names = {name for name, *_ in served.metrics()}
    assert not names & {"fedpower_epsilon_left", "fedpower_epsilon_spent", "fedpower_round"}
    assert served.metrics()["fedpower_connected", "south"] == 0


def test_nothing_but_the_three_addresses_can_be_read(served):
    assert served.ask("/")[0] == served.ask("/metrics/../healthz")[0] == 404
    with served.send(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n") as stream:
        assert stream.recv(1000).startswith(b"HTTP/1.0 403"), (
            "a page may have made this machine its own address"
        )
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert served.ask("/metrics", method, body=b"x" * 100)[0] == 501, method


@pytest.mark.parametrize(
    "content", [b"GET /" + b"a" * 2**15, b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 2**13, b"\x16\x03\x01"]
)
def test_a_request_that_is_too_long_or_never_ends_gets_no_answer(served, content, monkeypatch):
    monkeypatch.setattr(health, "_LONGEST_S", 0.2)
    try:
        with served.send(content) as stream:
            assert stream.recv(100) == b""
    except ConnectionError:  # what it still sent was not read
        pass
    assert served.ask("/healthz")[0] == 200


def test_a_body_is_not_read(served):
    with served.send(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n", b"x" * 100
    ) as stream:
        assert stream.recv(1000).startswith(b"HTTP/1.0 200")


def test_slow_clients_delay_others_for_a_moment_only(served, monkeypatch):
    monkeypatch.setattr(health, "_LONGEST_S", 0.5)
    began = time.monotonic()
    slow = [served.send(b"GET /healthz HTTP/1.1\r\n") for _ in range(health._MOST_AT_ONCE)]
    assert served.ask("/healthz") == (200, "alive\n")
    assert time.monotonic() - began < 5
    for stream in slow:
        stream.close()


def test_facts_that_cannot_be_had_are_logged_and_the_process_is_still_alive(served, caplog):
    served.facts = None  # it has no field
    with pytest.raises(ConnectionError):
        served.ask("/readyz")
    assert served.ask("/healthz")[0] == 200
    assert "a request over HTTP failed" in caplog.text


def test_no_name_is_looked_up(monkeypatch):
    for name in ("getfqdn", "gethostbyaddr", "getnameinfo", "gethostname"):
        monkeypatch.setattr(socket, name, None)
    test_a_party_is_alive_and_ready_and_shows_its_numbers(Served())


def test_an_address_that_is_taken_is_refused_in_one_sentence(served):
    host, port = served.address
    with pytest.raises(InputError) as refused:
        serve_health((host, port), lambda: NORTH)
    assert str(refused.value) == (
        f"health and metrics must be able to listen at {host}:{port}, got address already in use; "
        "choose another address with --health HOST:PORT, or add --no-health"
    )


def test_days_left_are_those_of_the_certificates_in_a_kit(tmp_path):
    make_kits(write_study(tmp_path).federation, tmp_path / "kits", days=20, authority_days=100)
    assert certificate_days_left(tmp_path / "kits" / "north" / TLS) == {"party": 19, AUTHORITY: 99}


def test_the_dashboard_and_the_page_name_the_metrics_that_there_are(served):
    known = {name for name, *_ in served.metrics()}
    dashboard = (ROOT / "examples" / "federation" / "grafana.json").read_text(encoding="utf-8")
    panels = json.loads(dashboard)["panels"]
    shown = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"fedpower_\w+", target["expr"])
    }
    assert shown == known
    page = (ROOT / "docs" / "operator" / "monitor.md").read_text(encoding="utf-8")
    assert set(re.findall(r"fedpower_\w+", page)) == known


@pytest.mark.federation
def test_a_coordinator_and_a_silo_answer_and_know_of_each_other(tmp_path):
    """Real processes; that of the silo is confined."""
    ground = Ground(tmp_path, silos=("north", "south"), min_silos=2)
    north, coordinator = (Monitor("127.0.0.1", free_port()) for _ in range(2))
    log = tmp_path / "log"

    def start(party: str, monitor: Monitor) -> subprocess.Popen[bytes]:
        host, port = monitor.address
        with log.open("ab") as file:
            words = ("node", "start", str(ground.place(party)), f"--health={host}:{port}")
            ground.processes[party] = start_party(*words, log=file)
        return ground.processes[party]

    try:
        start("north", north)
        wait_for(lambda: is_alive(north), "the silo")
        assert north.ask("/readyz") == (503, "the coordinator is not connected\n")
        for party in (COORDINATOR, "south"):  # at an address that is taken
            assert start(party, north).wait(WAIT_S) == 2
            said = log.read_text()
            assert "must be able to listen at 127.0.0.1" in said
            assert "Traceback" not in said
        start(COORDINATOR, coordinator)
        ground.wait_until_connected("north")
        for monitor in (north, coordinator):
            assert monitor.ask("/readyz") == (200, "ready\n")
        of_silo, of_all = north.metrics(), coordinator.metrics()
        assert of_silo["fedpower_connected", COORDINATOR] == of_all["fedpower_connected", "north"] == 1
        assert of_all["fedpower_connected", "south"] == 0
        assert ("fedpower_connected", "runner") not in of_all
        assert abs(of_all["fedpower_last_contact_timestamp_seconds", "north"] - time.time()) < 60
        assert of_silo["fedpower_certificate_days_left", AUTHORITY] == 3649
        assert of_silo["fedpower_epsilon_spent",] == of_silo["fedpower_studies_waiting",] == 0
        assert of_silo["fedpower_epsilon_left",] == pytest.approx(LEDGER_CAP[0])

        ground.start("south")
        ground.wait_until_connected()
        ground.run("result")()
        wait_for(lambda: north.metrics().get(("fedpower_round",)) == 4, "the last round")
        assert north.metrics()["fedpower_epsilon_spent",] > 0
        assert coordinator.metrics()["fedpower_round",] == 4
        ground.stop("north")
        wait_for(lambda: not coordinator.metrics()["fedpower_connected", "north"], "the silo's absence")
    finally:
        ground.stop()


def is_alive(monitor: Monitor) -> bool:
    try:
        return monitor.ask("/healthz") == (200, "alive\n")
    except OSError:
        return False
