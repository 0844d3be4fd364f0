"""Whoever has the coordinator's or the runner's keys, against honest silos, over a live federation."""

import json
import os
import time

import numpy as np
import psutil
import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell

from adversary.hostile import (
    HONEST,
    Peer,
    cell_request,
    flare_cell,
    flare_requests,
    new_cell,
    peer,
    resident_bytes,
    stage_fixture,
    untouched,
    wait_for,
)
from federations import ASK_MOMENT
from fedpower.federation.kits import COORDINATOR, Kit
from fedpower.federation.runner import open_session
from fedpower.protocol.messages import (
    AskQuery,
    AskSteps,
    Enrol,
    Message,
    OpenSession,
    Refusal,
    Session,
    decode,
    encode,
)
from fedpower.protocol.receiving import most_question_bytes

pytestmark = pytest.mark.federation


stage = stage_fixture()


@pytest.fixture(scope="class")
def presiding(stage):
    """A hostile coordinator in the honest one's place; that one comes back afterwards."""
    stage.stop(COORDINATOR)
    chair = Peer(stage, COORDINATOR)
    try:
        yield chair.preside(*HONEST)
    finally:
        chair.leave()
        time.sleep(1.0)
        stage.start(COORDINATOR)
        stage.wait_for_honest()


def question(stage, body, *, silo="north", run="a" * 16, number=1, study=None) -> bytes:
    terms, _, _ = stage.study.terms()
    return encode(Message(study=study or terms.digest, run=run, round=number, silo=silo, body=body))


def test_a_real_flare_server_gets_nothing_from_a_silo(stage, tmp_path):
    """FLARE's server cell, with the coordinator's certificate, sends all that FLARE's clients take."""
    stage.stop(COORDINATOR)
    cell = new_cell(stage.tls(COORDINATOR), "server", stage.study.port)
    try:
        with untouched(stage):
            cell.start()
            wait_for(lambda: set(HONEST) <= set(cell.agents), "silos")
            for channel, topic, payload in flare_requests(stage):
                assert cell_request(cell, "north", channel, topic, payload) is None
            assert "refused what server sent" in stage.log("north")
    finally:
        CoreCell.ALL_CELLS.pop("server", None)
        cell.stop()
        stage.start(COORDINATOR)
        stage.wait_for_honest()
    stage.honest_run(tmp_path / "honest")


def _nodes(stage) -> list[int]:
    """Return the processes of the honest silos' nodes: children of their vaults."""
    vaults = [stage.processes[name].pid for name in HONEST]
    return [child.pid for vault in vaults for child in psutil.Process(vault).children()]


def test_a_silo_listens_nowhere(stage):
    for pid in (*_nodes(stage), *(stage.processes[name].pid for name in HONEST)):
        open_ = psutil.Process(pid).net_connections(kind="inet")
        assert [each for each in open_ if each.status == psutil.CONN_LISTEN] == []


def _basis(study):
    return np.eye(study.n_features, study.iteration_rank)


class TestHostileCoordinator:
    """Each attack on silos that know no other coordinator."""

    def test_other_kinds_headers_and_sizes_are_refused_by_a_silo(self, stage, presiding):
        study, _, _ = stage.study.terms()
        before = [resident_bytes(pid) for pid in _nodes(stage)]
        with untouched(stage):
            for kind in ("call", "answer", "reply", "shell", "deploy", "abort", "delete", "restart"):
                presiding.put("north", {"kind": kind, "number": 1}, b"head rows.csv")
            presiding.put("north", {"kind": "ask", "number": 1, "path": "/etc/passwd"}, b"")
            presiding.put("north", None, b"")
            for app in (0, 1, 2, 27):
                presiding.put("north", {"kind": "ask", "number": 1}, b"x", app=app)
            time.sleep(0.5)
            assert presiding.got == []
            assert presiding.asked("north", b"", 2) == b""
            assert presiding.asked("north", os.urandom(1000), 3) == b""
            presiding.put("north", {"kind": "ask", "number": 4}, bytes(most_question_bytes(study) + 2**20))
            wait_for(lambda: "north" not in presiding.connected(), "the end of the connection")
            wait_for(lambda: "north" in presiding.connected(), "north's return")
        after = [resident_bytes(pid) for pid in _nodes(stage)]
        assert all(now < then + 60 * 2**20 for now, then in zip(after, before, strict=True))
        assert "refused what coordinator sent" in stage.log("north")

    def test_a_flood_of_questions_leaves_the_silo_answering(self, stage, presiding):
        with untouched(stage):
            for number in range(10, 2000):
                presiding.put("north", {"kind": "ask", "number": number}, question(stage, Enrol()))
            time.sleep(1.0)
            wait_for(lambda: "north" in presiding.connected(), "north")
            answer = presiding.asked("north", question(stage, Enrol()), 5000)
        assert decode(answer).body.n_rows == 400

    def test_questions_of_other_studies_and_silos_are_refused_and_cost_nothing(self, stage, presiding):
        with untouched(stage):
            for content in (
                question(stage, ASK_MOMENT, study="0" * 64),
                question(stage, ASK_MOMENT, silo="south"),
                question(stage, OpenSession(attempt=1)),
                question(
                    stage,
                    AskQuery(session=Session(study="s", run="r", attempt=0, members=()), index=0, label="x"),
                ),
            ):
                answer = presiding.asked("north", content, 1)
                assert isinstance(decode(answer).body, Refusal)

    def test_however_often_it_asks_it_gets_the_same_bytes_for_one_charge(self, stage, presiding):
        """Under other runs, in other rounds, reordered and repeated."""
        first = decode(presiding.asked("north", question(stage, ASK_MOMENT), 1))
        for number, run in enumerate(("a" * 16, "b" * 16, "c" * 16), start=2):
            content = question(stage, ASK_MOMENT, run=run, number=number)
            again = decode(presiding.asked("north", content, number))
            assert again.body.triangle.tobytes() == first.body.triangle.tobytes()
        assert len(stage.record().charges["north"]) == 1
        study, _, _ = stage.study.terms()
        steps = AskSteps(basis=_basis(study), n_local_steps=1)
        presiding.asked("north", question(stage, steps, number=9), 9)
        assert len(stage.record().charges["north"]) == 1


CALLS = (
    {"do": "fetch", "run": "../../north"},
    {"do": "fetch", "run": "0" * 16, "file": "../../../tls/party.key", "offset": 0},
    {"do": "fetch", "run": "0" * 16, "file": "/etc/passwd", "offset": 0},
    {"do": "fetch", "run": ".." * 8},
    {"do": "start", "run": "rows"},
    {"do": "start", "run": {"x": 1}},
    {"do": "start"},
    {"do": "shell", "command": "head rows.csv"},
    {"do": "delete", "job": "tls"},
    {"do": "shutdown"},
    {"do": "__init__"},
    ["status"],
    "status",
    None,
)


def test_a_hostile_runner_gets_errors_and_nothing_else(stage):
    with untouched(stage), peer(stage, "runner") as runner:
        for number, call in enumerate(CALLS, start=1):
            runner.put(COORDINATOR, {"kind": "call", "number": number}, json.dumps(call).encode())
            wait_for(lambda: len(runner.got) == number, f"a reply to {call}")  # noqa: B023
            _, kind, replied, reply = runner.got[-1]
            head, _, rest = reply.partition(b"\n")
            assert (kind, replied, rest) == ("reply", number, b"")
            assert "error" in json.loads(head), call


def test_a_hostile_runner_reaches_no_silo(stage, tmp_path):
    with untouched(stage), flare_cell(stage, "runner") as cell:
        wait_for(lambda: cell.agents, "a connection")
        for channel, topic, payload in flare_requests(stage):
            for target in ("north", COORDINATOR):
                assert cell_request(cell, target, channel, topic, payload) is None
    with untouched(stage), peer(stage, "runner") as runner:
        for kind in ("ask", "answer", "reply"):
            runner.put(COORDINATOR, {"kind": kind, "number": 1}, question(stage, ASK_MOMENT))
            runner.put("north", {"kind": kind, "number": 1}, question(stage, ASK_MOMENT))
        time.sleep(0.5)
        assert runner.got == []
    stage.honest_run(tmp_path / "honest")


def test_a_runner_that_starts_run_after_run_costs_nothing_more(stage, tmp_path):
    stage.honest_run(tmp_path / "first")
    before = stage.record().charges
    with open_session(Kit(stage.runner)) as session:
        for number in range(5):
            session.start(f"{number:016x}")
            time.sleep(0.3)
    stage.honest_run(tmp_path / "last")
    assert stage.record().charges == before
