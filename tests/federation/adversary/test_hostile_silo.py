"""A silo with valid keys against the coordinator and the other silos, over a live federation."""

import json
import os
import threading
import time

import numpy as np
import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

from adversary.hostile import (
    HONEST,
    Peer,
    cell_request,
    flare_cell,
    flare_requests,
    peer,
    resident_bytes,
    stage_fixture,
    untouched,
    wait_for,
)
from fedpower.federation.kits import COORDINATOR
from fedpower.protocol.messages import Enrolment, Message, QueryAnswer, decode, encode

pytestmark = pytest.mark.federation


stage = stage_fixture()


@pytest.fixture(autouse=True)
def _an_honest_run_completes(stage, tmp_path):
    """After every attack, not only after the last."""
    yield
    stage.wait_for_honest()
    stage.honest_run(tmp_path / "honest")


def test_no_request_of_flare_s_own_reaches_another_silo_or_the_coordinator(stage):
    """Shell commands, deletions, deployments, aborts, shutdowns: every processor that FLARE has."""
    stage.honest_run(stage.folder / "before")
    requests = flare_requests(stage)
    assert len(requests) > 60
    with untouched(stage), flare_cell(stage, "east") as cell:
        wait_for(lambda: cell.agents, "a connection")
        for target in ("north", COORDINATOR):
            for channel, topic, payload in requests:
                assert cell_request(cell, target, channel, topic, payload) is None, (channel, topic)
    assert "refused what east sent" in stage.log(COORDINATOR)


def test_forged_routes_and_origins_are_believed_by_nobody(stage):
    forged = {
        MessageHeaderKey.ORIGIN: "coordinator",
        MessageHeaderKey.FROM_CELL: "coordinator",
        MessageHeaderKey.ROUTE: [("coordinator", time.time())],
        MessageHeaderKey.DESTINATION: "north",
        MessageHeaderKey.TO_CELL: "north",
        MessageHeaderKey.MSG_TYPE: "req",
        MessageHeaderKey.CHANNEL: "admin",
        MessageHeaderKey.TOPIC: "admin",
        MessageHeaderKey.CONN_URL: "grpc://localhost:9",
    }
    with untouched(stage), peer(stage, "east") as east:
        for app in (1, 26):
            for to in (COORDINATOR,):
                east.put(to, forged, b"head rows.csv", app=app)
                east.put(to, {**forged, "kind": "answer", "number": 1}, b"x", app=app)
        time.sleep(0.5)
        assert east.got == []
    assert "refused what east sent" in stage.log(COORDINATOR)


NAMES = ("north", "runner", COORDINATOR, "server", "east.north", "_admin_x")


def test_a_silo_cannot_take_another_name(stage):
    """The name on the certificate is the name; under another nothing is delivered."""
    for name in NAMES:
        with untouched(stage), peer(stage, "east", name=name) as east:
            east.put(COORDINATOR, {"kind": "answer", "number": 1}, b"x")
            east.put(COORDINATOR, {"kind": "call", "number": 1}, json.dumps({"do": "status"}).encode())
            time.sleep(0.7)
            assert east.got == []


CALLS = ({"do": "status"}, {"do": "start", "run": "0" * 16}, {"do": "fetch", "run": "0" * 16}, {"do": "stop"})
HEADERS = (
    None,
    {},
    {"kind": "answer"},
    {"number": 1},
    {"kind": "answer", "number": "1"},
    {"kind": "answer", "number": -1},
    {"kind": "answer", "number": True},
    {"kind": "answer", "number": 1, "more": b"x" * 1000},
    {"kind": ["answer"], "number": 1},
    {"kind": "abort", "number": 1},
    {"kind": "shutdown", "number": 1},
)


def test_a_silo_cannot_do_what_the_runner_does_and_foreign_headers_and_frames_do_no_harm(stage):
    random = np.random.default_rng(0)
    for call in CALLS:
        with untouched(stage), peer(stage, "east") as east:
            for kind in ("call", "ask", "reply"):
                east.put(COORDINATOR, {"kind": kind, "number": 1}, json.dumps(call).encode())
            time.sleep(0.5)
            assert east.got == []
    with untouched(stage), peer(stage, "east") as east:
        for headers in HEADERS:
            east.put(COORDINATOR, headers, b"x")
        time.sleep(0.5)
        assert east.got == []
    with untouched(stage), peer(stage, "east") as east:
        for size in (0, 1, 15, 16, 17, 100, 5000):
            east.put_frame(random.bytes(size))
        for type_ in range(10):
            east.put_frame(bytes([0, 0, 0, 40, 0, 4, type_, 0]) + random.bytes(32))
        time.sleep(0.5)


def test_an_answer_of_300_mb_is_refused_before_it_is_assembled(stage):
    before = resident_bytes(stage.processes[COORDINATOR].pid)
    with untouched(stage), peer(stage, "east") as east:
        east.put(COORDINATOR, {"kind": "answer", "number": 1}, bytes(300 * 2**20))
        wait_for(lambda: not east.connected(), "the end of the connection")
    assert resident_bytes(stage.processes[COORDINATOR].pid) < before + 60 * 2**20


def test_a_flood_is_cut_off(stage):
    before = resident_bytes(stage.processes[COORDINATOR].pid)
    with untouched(stage), peer(stage, "east") as east:
        for _ in range(3000):
            east.put(COORDINATOR, {"kind": "answer", "number": 7}, bytes(30_000))
            east.put(COORDINATOR, {"kind": "abort", "number": 7}, bytes(30_000))
        time.sleep(1.0)
    assert resident_bytes(stage.processes[COORDINATOR].pid) < before + 100 * 2**20


def test_many_connections_of_one_silo_leave_room_for_the_others(stage, tmp_path):
    with untouched(stage):
        made = [Peer(stage, "east") for _ in range(20)]
        for each in made:
            threading.Thread(target=each.join, daemon=True).start()
        time.sleep(2.0)
        stage.wait_for_honest()
        for each in made:
            each.leave()


class Liar:
    """Answers in the name of east, each question with what a function makes of it."""

    def __init__(self, stage, lie) -> None:
        self.peer = peer(stage, "east")
        self.lie = lie
        self.seen = 0

    def __enter__(self):
        self.east = self.peer.__enter__()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._go, daemon=True)
        self.thread.start()
        return self

    def _go(self) -> None:
        done = 0
        while not self.stopped.wait(0.02):
            for _, kind, number, content in self.east.got[done:]:
                done += 1
                if kind == "ask":
                    self.seen += 1
                    self.lie(self.east, number, decode(content))

    def __exit__(self, *raised):
        self.stopped.set()
        self.thread.join()
        return self.peer.__exit__(*raised)


def answered(east, number, question, body, *, silo="east") -> None:
    message = Message(study=question.study, run=question.run, round=question.round, silo=silo, body=body)
    east.put(COORDINATOR, {"kind": "answer", "number": number}, encode(message))


def enrolled(east, number, question, n_rows=400) -> bool:
    """Answer an enrolment; return whether it was one."""
    if question.body.kind != "enrol":
        return False
    answered(east, number, question, Enrolment(n_rows=n_rows, n_features=6, data_version="1"))
    return True


def run_beside(stage, tmp_path, lie):
    """Return the state and the seconds of a run in which east answers with lies."""
    with Liar(stage, lie) as liar:
        started = time.monotonic()
        state = stage.honest_run(tmp_path / "run")
        assert liar.seen, "east was asked"
        return state, time.monotonic() - started


def test_a_silo_that_hangs_delays_a_result_by_the_deadline_at_most(stage, tmp_path):
    state, seconds = run_beside(stage, tmp_path, enrolled)
    assert state["rounds"][-1]["silent"] == ["east"]
    assert seconds < stage.study.deadline + stage.study.grace + 5.0


def test_a_silo_that_never_answers_at_all_delays_each_round_by_the_grace_time(stage, tmp_path):
    _, seconds = run_beside(stage, tmp_path, lambda *_: None)
    assert seconds < 2 * stage.study.grace + 8.0


def test_garbage_duplicates_reordered_and_foreign_answers_count_for_nothing(stage, tmp_path):
    def lie(east, number, question):
        if enrolled(east, number, question):
            return
        zeros = QueryAnswer(words=np.zeros(22, dtype=np.uint64))
        for silo in (*HONEST, "east"):  # first in others' names and to other numbers
            for other in (number + 1, max(0, number - 1), 10**9):
                answered(east, other, question, zeros, silo=silo)
        east.put(COORDINATOR, {"kind": "answer", "number": number}, b"\0" * 100)
        for _ in range(5):
            east.put(COORDINATOR, {"kind": "answer", "number": number}, b"again")

    state, _ = run_beside(stage, tmp_path, lie)
    assert "east" not in state["rounds"][-1]["answered"]
    assert set(state["rounds"][-1]["answered"]) == set(HONEST)


def test_an_answer_in_another_silo_s_name_is_set_aside(stage, tmp_path):
    def lie(east, number, question):
        if not enrolled(east, number, question):
            zeros = QueryAnswer(words=np.zeros(22, dtype=np.uint64))
            answered(east, number, question, zeros, silo="north")

    state, _ = run_beside(stage, tmp_path, lie)
    assert "its silo's own" in state["rounds"][-1]["set_aside"]["east"]


def test_a_number_of_rows_that_cannot_be_is_set_aside(stage, tmp_path):
    for n_rows in (2**41, -1, 0):

        def lie(east, number, question, n_rows=n_rows):
            enrolled(east, number, question, n_rows=n_rows)

        place = tmp_path / str(n_rows)
        place.mkdir()
        state, _ = run_beside(stage, place, lie)
        assert "east" in state["rounds"][0]["set_aside"]


def test_an_inflated_number_of_rows_stops_nobody(stage, tmp_path):
    """It can spoil the result, as any plausible lie can; the record says how many rows each named."""

    def lie(east, number, question):
        if not enrolled(east, number, question, n_rows=10**9):
            zeros = QueryAnswer(words=np.zeros(22, dtype=np.uint64), made_for=question.run)
            answered(east, number, question, zeros)

    state, _ = run_beside(stage, tmp_path, lie)
    assert set(state["rounds"][-1]["answered"]) == {*HONEST, "east"}


def test_an_oversized_answer_to_a_real_question_leaves_its_silo_out(stage, tmp_path):
    before = resident_bytes(stage.processes[COORDINATOR].pid)

    def lie(east, number, question):
        if not enrolled(east, number, question):
            east.put(COORDINATOR, {"kind": "answer", "number": number}, os.urandom(2**24))

    state, _ = run_beside(stage, tmp_path, lie)
    assert "east" not in state["rounds"][-1]["answered"]
    assert resident_bytes(stage.processes[COORDINATOR].pid) < before + 100 * 2**20


def test_one_silo_cannot_keep_a_result_away_six_times_in_a_row(stage, tmp_path):
    """As it could by aborting jobs: it disconnects in the middle of every round."""

    def lie(east, number, question):
        if not enrolled(east, number, question):
            east.put_frame(b"\0" * 2**22)  # ends the connection

    for attempt in range(6):
        place = tmp_path / str(attempt)
        place.mkdir()
        state, _ = run_beside(stage, place, lie)
        assert set(HONEST) <= set(state["rounds"][-1]["answered"])
