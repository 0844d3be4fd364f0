"""Parties with valid or false keys against honest ones, over one live federation: nothing leaks or ends."""

import json
import os
import shutil
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from cryptography.hazmat.primitives import serialization
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

from adversary.hostile import (
    HONEST,
    Peer,
    Stage,
    assert_gets_nothing,
    flare_cell,
    new_cell,
    peer,
    resident_bytes,
    untouched,
    wait_for,
)
from federations import ASK_MOMENT
from fedpower.exceptions import ProtocolError
from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE, KEY, MOST_BYTES, TLS, kits
from fedpower.federation.kits import Authority, Kit, make_kits
from fedpower.federation.runner import open_session
from fedpower.federation.study_file import COORDINATOR
from fedpower.protocol.messages import (
    AskSteps,
    Enrol,
    Enrolment,
    Message,
    OpenSession,
    QueryAnswer,
    Refusal,
    Standing,
    decode,
    encode,
)

pytestmark = pytest.mark.federation

REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""What TLS says, in the words of the library under gRPC."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    made = Stage(tmp_path_factory.mktemp("stage"))
    made.begin()
    yield made
    made.stop()


@pytest.fixture
def survived(stage, tmp_path):
    """Run the study after the attack: it must end with the honest silos' result."""
    yield
    stage.wait_until_connected(*HONEST)
    stage.honest_run(tmp_path / "honest")


def n_charged(stage) -> int:
    return len(stage.record().charges["north"])


def test_no_request_of_flare_s_own_reaches_another_silo_or_the_coordinator(stage, survived):
    """Shell commands, deletions, deployments, aborts, shutdowns: every processor that FLARE has."""
    stage.honest_run(stage.folder / "before")
    for party in ("east", "runner"):
        with untouched(stage), flare_cell(stage, party) as cell:
            wait_for(lambda: cell.agents, "a connection")
            assert_gets_nothing(stage, cell, "north", COORDINATOR)
    assert "refused a message of east" in stage.log(COORDINATOR)


FORGED = {
    MessageHeaderKey.ORIGIN: "coordinator",
    MessageHeaderKey.ROUTE: [("coordinator", 0.0)],
    MessageHeaderKey.TO_CELL: "north",
    MessageHeaderKey.MSG_TYPE: "req",
    MessageHeaderKey.CHANNEL: "admin",
    MessageHeaderKey.TOPIC: "admin",
}
NAMES = ("north", "runner", COORDINATOR, "server", "east.north", "_admin_x")
HEADERS = (None, {"kind": "shutdown", "number": 1}, FORGED, {**FORGED, "kind": "answer", "number": 1})
"""`test_flare_transport.py` has more of them, in process."""


def test_forged_names_routes_calls_headers_and_frames_are_believed_by_nobody(stage, survived):
    """The name on the certificate is the name; under another nothing is delivered."""
    status = msgspec.msgpack.encode({"do": "status"})
    random = np.random.default_rng(0)
    with untouched(stage):
        for name in NAMES:
            with peer(stage, "east", name=name) as east:
                east.put(COORDINATOR, {"kind": "answer", "number": 1}, b"x")
                east.put(COORDINATOR, {"kind": "call", "number": 1}, status)
                time.sleep(0.7)
                assert east.got == []
    with untouched(stage), peer(stage, "east") as east:
        for kind in ("call", "ask", "reply"):
            east.put(COORDINATOR, {"kind": kind, "number": 1}, status)
        for headers in HEADERS:
            for app in (1, 26):
                east.put(COORDINATOR, headers, b"head rows.csv", app=app)
        time.sleep(0.5)
        assert east.got == []
        for size in (0, 1, 15, 16, 17, 100, 5000):
            east.put_frame(random.bytes(size))
        for type_ in range(10):
            east.put_frame(bytes([0, 0, 0, 40, 0, 4, type_, 0]) + random.bytes(32))
        time.sleep(0.5)
    assert "refused a message of east" in stage.log(COORDINATOR)


def test_300_mb_a_flood_and_many_connections_of_one_silo_leave_room_for_the_others(stage, survived):
    pid = stage.processes[COORDINATOR].pid
    before = resident_bytes(pid)
    with untouched(stage), peer(stage, "east") as east:
        east.put(COORDINATOR, {"kind": "answer", "number": 1}, bytes(300 * 2**20))
        wait_for(lambda: not east.connected(), "the end of the connection")
    assert resident_bytes(pid) < before + 60 * 2**20, "refused before it is assembled"
    with untouched(stage), peer(stage, "east") as east:
        for _ in range(3000):
            east.put(COORDINATOR, {"kind": "answer", "number": 7}, bytes(30_000))
            east.put(COORDINATOR, {"kind": "abort", "number": 7}, bytes(30_000))
        time.sleep(1.0)
    assert resident_bytes(pid) < before + 100 * 2**20
    with untouched(stage):
        made = [Peer(stage, "east") for _ in range(20)]
        for each in made:
            threading.Thread(target=each.join, daemon=True).start()
        time.sleep(2.0)
        stage.wait_until_connected(*HONEST)
        for each in made:
            each.leave()


def answered(east, number, question, body, *, silo="east") -> None:
    message = Message(study=question.study, run=question.run, round=question.round, silo=silo, body=body)
    east.put(COORDINATOR, {"kind": "answer", "number": number}, encode(message))


ZEROS = QueryAnswer(words=np.zeros(22, dtype=np.uint64))


def garbage(east, number, question):
    for silo in (*HONEST, "east"):  # first in others' names and to other numbers
        for other in (number + 1, max(0, number - 1), 10**9):
            answered(east, other, question, ZEROS, silo=silo)
    for content in (os.urandom(2**24), b"\0" * 100, *[b"again"] * 5):
        east.put(COORDINATOR, {"kind": "answer", "number": number}, content)


LIES = {
    "hangs": lambda *_: None,
    "garbage, duplicates, others' names and numbers": garbage,
    # As it could by aborting jobs: it ends its connection in the middle of every round.
    "disconnects": lambda east, *_: east.put_frame(b"\0" * 2**22),
}
"""By name: what east answers once it has enrolled."""


@pytest.mark.parametrize("name", LIES)
def test_a_silo_that_lies_or_hangs_keeps_no_result_away(stage, tmp_path, name):
    """It delays a round by the deadline at most, or by the grace time where it never answers."""
    before, seen = resident_bytes(stage.processes[COORDINATOR].pid), []

    def react(number: int, content: bytes) -> None:
        question = decode(content)
        seen.append(number)
        if question.body.kind == "propose" and name != "hangs":
            answered(east, number, question, Standing(state="approved"))
        elif question.body.kind == "enrol":
            answered(east, number, question, Enrolment(n_rows=400, n_features=6, data_version="1"))
        else:
            LIES[name](east, number, question)

    with peer(stage, "east", react=react) as east:
        started = time.monotonic()
        state = stage.honest_run(tmp_path / "run")
        seconds = time.monotonic() - started
    assert seen, "east was asked"
    closed = state["rounds"][-1]
    assert "east" in closed["silent"]
    assert set(HONEST) <= set(closed["answered"])
    assert seconds < stage.study.deadline + stage.study.grace + 8.0
    # Messages of 16 MB are read whole, and dropped, before they are judged by the study's limits.
    assert resident_bytes(stage.processes[COORDINATOR].pid) < before + 200 * 2**20


@pytest.fixture(scope="module")
def foreign(stage, tmp_path_factory):
    """Kits of another authority for the same study, silos and address."""
    folder = tmp_path_factory.mktemp("foreign") / "kits"
    make_kits(stage.study.federation, folder)
    return folder


def knock(stage, tls, name="east") -> Peer:
    made = Peer(stage, "east", name=name)
    made._tls = tls
    made.join()
    made.put(COORDINATOR, {"kind": "answer", "number": 1}, b"x")
    made.put(COORDINATOR, {"kind": "call", "number": 1}, msgspec.msgpack.encode({"do": "status"}))
    time.sleep(0.5)
    made.leave()
    return made


def greeted(stage, tls: Path | None) -> bool:
    """Return whether the coordinator says a word to one who shows the certificate of a kit."""
    context = ssl.create_default_context(cafile=stage.tls("north") / AUTHORITY_CERTIFICATE)
    context.set_alpn_protocols(["h2"])
    if tls is not None:
        context.load_cert_chain(tls / CERTIFICATE, tls / KEY)
    with socket.create_connection(("127.0.0.1", stage.study.port), timeout=30) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as stream:
                stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return bool(stream.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def certified(stage, tls: Path, signer, issuer: str, *, minutes: float) -> Path:
    """Put a certificate in the name of east, that ends in so many minutes, into a copy of its kit."""
    shutil.copytree(stage.tls("east"), tls)
    key = kits.read_key(tls / KEY).public_key()
    until = datetime.now(UTC) + timedelta(minutes=minutes)
    made = kits.new_certificate(
        "east", key, signer, issuer, until=until, hosts=kits._hosts(stage.study.federation, "east")
    )
    (tls / CERTIFICATE).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return tls


def test_the_real_certificate_connects_and_none_or_a_false_one_does_not(stage, foreign, tmp_path):
    """None; one that ended; one signed by its bearer; one of another authority; another party's."""
    assert greeted(stage, stage.tls("east"))
    with peer(stage, "east") as east:
        assert east.connected() == [COORDINATOR]
    authority = Authority(stage.kits / "authority")
    own = kits.read_key(stage.tls("east") / KEY)
    other = foreign / "east" / TLS
    shutil.copyfile(stage.tls("east") / AUTHORITY_CERTIFICATE, other / AUTHORITY_CERTIFICATE)
    with untouched(stage):
        assert not greeted(stage, None)
        for tls in (
            certified(stage, tmp_path / "ended", authority.key, stage.study.name, minutes=-1),
            certified(stage, tmp_path / "own", own, "east", minutes=60),
            other,
        ):
            assert not greeted(stage, tls)
            made = knock(stage, tls)
            assert (made.connected(), made.got) == ([], [])
        for name in (*HONEST, "east", "runner"):  # the coordinator's makes nobody a silo or the runner
            assert knock(stage, stage.tls(COORDINATOR), name=name).got == []
            assert f"claimed endpoint '{name}'" in stage.log(COORDINATOR)
    with (
        untouched(stage),
        pytest.raises(ProtocolError, match="the coordinator must answer at localhost"),
        open_session(Kit(foreign / "runner"), patience=5.0),
    ):
        pytest.fail("a stranger has a session")


def question(stage, body, *, silo="north", run="a" * 16, number=1, study=None) -> bytes:
    terms, _, _ = stage.study.terms()
    return encode(Message(study=study or terms.digest, run=run, round=number, silo=silo, body=body))


def _nodes(stage) -> list[int]:
    """Return the processes of the honest silos' nodes: children of their vaults."""
    vaults = [stage.processes[name].pid for name in HONEST]
    return [child.pid for vault in vaults for child in psutil.Process(vault).children()]


def test_a_silo_listens_nowhere(stage):
    for pid in (*_nodes(stage), *(stage.processes[name].pid for name in HONEST)):
        open_ = psutil.Process(pid).net_connections(kind="inet")
        assert [each for each in open_ if each.status == psutil.CONN_LISTEN] == []


def test_silos_give_nothing_to_false_coordinators_nor_to_flare_s_own_server(stage, foreign, survived):
    """One of another authority, one with a silo's key, and FLARE's server with the coordinator's key."""
    before = stage.record()
    stage.stop(COORDINATOR)
    for tls in (foreign / COORDINATOR / TLS, stage.tls("east")):
        refusals = {name: stage.log(name).count(REFUSED) for name in HONEST}
        made = Peer(stage, COORDINATOR)
        made.listen("localhost", stage.study.port, tls)
        wait_for(lambda: all(stage.log(name).count(REFUSED) > refusals[name] for name in HONEST), "refusals")  # noqa: B023
        assert made.connected() == []
        made.leave()
        time.sleep(1.0)
    cell = new_cell(stage.tls(COORDINATOR), "server", stage.study.port)
    try:
        cell.start()
        wait_for(lambda: set(HONEST) <= set(cell.agents), "silos")
        assert_gets_nothing(stage, cell, "north")
        assert "refused a message of server" in stage.log("north")
    finally:
        CoreCell.ALL_CELLS.pop("server", None)
        cell.stop()
    stage.start(COORDINATOR)
    stage.wait_until_connected(*HONEST)
    after = stage.record()
    assert after.charges == before.charges
    assert all(after.processes[name] == before.processes[name] for name in HONEST)


def test_a_hostile_coordinator_gets_each_number_once_and_nothing_else(stage, survived):
    """Other kinds, headers and sizes; floods; other studies; the same question again and again."""
    study, _, _ = stage.study.terms()
    before, charged = [resident_bytes(pid) for pid in _nodes(stage)], n_charged(stage)
    stage.stop(COORDINATOR)
    chair = Peer(stage, COORDINATOR).preside(*HONEST)
    try:
        with untouched(stage):
            for kind in ("call", "answer", "reply", "shell", "deploy", "abort", "delete", "restart"):
                chair.put("north", {"kind": kind, "number": 1}, b"head rows.csv")
            chair.put("north", {"kind": "ask", "number": 1, "path": "/etc/passwd"}, b"")
            chair.put("north", None, b"")
            for app in (0, 1, 2, 27):
                chair.put("north", {"kind": "ask", "number": 1}, b"x", app=app)
            time.sleep(0.5)
            assert chair.got == []
            assert chair.asked("north", b"", 2, seconds=1.0) is None, "the status of a vault is its node's"
            assert chair.asked("north", os.urandom(1000), 3) == b""
            chair.put("north", {"kind": "ask", "number": 4}, bytes(MOST_BYTES + 2**20))
            wait_for(lambda: "north" not in chair.connected(), "the end of the connection")
            wait_for(lambda: "north" in chair.connected(), "north's return")
        after = [resident_bytes(pid) for pid in _nodes(stage)]
        assert all(now < then + 60 * 2**20 for now, then in zip(after, before, strict=True))
        assert "refused a message of coordinator" in stage.log("north")
        with untouched(stage):
            for number in range(10, 600):
                chair.put("north", {"kind": "ask", "number": number}, question(stage, Enrol()))
            time.sleep(1.0)
            wait_for(lambda: "north" in chair.connected(), "north")
            answer = chair.asked("north", question(stage, Enrol()), 5000)
            assert decode(answer).body.n_rows == 400
            for content in (
                question(stage, ASK_MOMENT, study="0" * 64),
                question(stage, ASK_MOMENT, silo="south"),
                question(stage, OpenSession(attempt=1)),
            ):
                assert isinstance(decode(chair.asked("north", content, 1)).body, Refusal)
        # Under other runs, in other rounds, reordered and repeated: the same bytes for one charge.
        first = decode(chair.asked("north", question(stage, ASK_MOMENT), 1))
        for number, run in enumerate(("a" * 16, "b" * 16, "c" * 16), start=2):
            content = question(stage, ASK_MOMENT, run=run, number=number)
            again = decode(chair.asked("north", content, number))
            assert again.body.words.tobytes() == first.body.words.tobytes()
        steps = AskSteps(basis=np.eye(study.n_features, study.iteration_rank), n_local_steps=1)
        chair.asked("north", question(stage, steps, number=9), 9)
        assert n_charged(stage) == max(1, charged)
    finally:
        chair.leave()
        time.sleep(1.0)
        stage.start(COORDINATOR)
        stage.wait_until_connected(*HONEST)


def test_a_hostile_runner_gets_errors_reaches_no_silo_and_costs_nothing_more(stage, survived, tmp_path):
    with untouched(stage), peer(stage, "runner") as runner:
        for number, call in enumerate(({"do": "shutdown"}, None)):  # test_coordinator_and_runner.py has more
            runner.put(COORDINATOR, {"kind": "call", "number": number}, json.dumps(call).encode())
        wait_for(lambda: len(runner.got) == 2, "replies")
        assert all(b'"error"' in reply for *_, reply in runner.got)
        runner.got.clear()
        for kind in ("ask", "answer", "reply"):
            runner.put(COORDINATOR, {"kind": kind, "number": 1}, question(stage, ASK_MOMENT))
            runner.put("north", {"kind": kind, "number": 1}, question(stage, ASK_MOMENT))
        time.sleep(0.5)
        assert runner.got == []
    stage.honest_run(tmp_path / "first")
    before = stage.record().charges
    with open_session(Kit(stage.runner)) as session:
        for number in range(5):
            session.start(f"{number:016x}", stage.study, {})
            time.sleep(0.3)
    stage.honest_run(tmp_path / "last")
    assert stage.record().charges == before
