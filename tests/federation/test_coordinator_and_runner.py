"""Coordinator and runner without a network: one answer per question, calls, and runs taken up."""

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from msgspec.structs import replace
from studies import CONTENT, RUN, SIZES, kit_of, write_study

from federations import NAMES, coordinator_of, parties_of, study_of
from fedpower.engines.inprocess import Pace, drive
from fedpower.exceptions import InputError, ProtocolError, RefusedError
from fedpower.federation import coordinator as serving
from fedpower.federation import runner as running
from fedpower.federation.coordinator import CoordinatorService, Questions, RunThread, StudyRun
from fedpower.federation.kits import Kit
from fedpower.federation.links import ANSWER, ASK, CALL, REPLY
from fedpower.federation.processes import only_one
from fedpower.federation.runner import LAST_RUNS, CoordinatorLostError, CoordinatorSession, Runner
from fedpower.federation.study_file import COORDINATOR, RUNNER, VIEWERS, StudyFile
from fedpower.protocol.coordinator import Round, Unreadable
from fedpower.protocol.messages import Enrolment, Message, Propose, Refusal, Standing, decode, encode

SIGNED = {"0" * 64: "0" * 128}


class FakeLinks:
    """Keeps what is sent; silos are connected as the test says, and answer at once if it says how."""

    def __init__(self, *connected: str) -> None:
        self.there = list(connected)
        self.sent: list[tuple[str, str, int, bytes]] = []
        self.on_send: Callable[[str, int, bytes], None] = lambda *_: None

    def send(self, peer: str, kind: str, number: int, content: bytes) -> bool:
        if peer not in self.there and peer != RUNNER:
            return False
        self.sent.append((peer, kind, number, content))
        self.on_send(peer, number, content)
        return True

    def connected(self) -> list[str]:
        return list(self.there)


class Asking:
    """Questions of a first round that are on their way, and the answers that silos give."""

    def __init__(self) -> None:
        self.links, self.stopped = FakeLinks(*NAMES), threading.Event()
        self.questions = Questions(self.links, study_of("fedpower"), self.stopped)  # type: ignore[arg-type]
        self.parties = parties_of("fedpower")

    def ask(self) -> None:
        asked = coordinator_of("fedpower").next()
        for question in asked:
            self.questions.send(question)
        self.answers = {each.silo: encode(self.parties[each.silo].answer(each)) for each in asked}

    def number(self, silo: str) -> int:
        return next(number for peer, _, number, _ in self.links.sent if peer == silo)

    def take(self, silo: str, number: int | None = None, content: bytes | None = None) -> Any:
        """Return what arrives once a silo sent something, its answer under its number by default."""
        content = self.answers[silo] if content is None else content
        self.questions.take(silo, self.number(silo) if number is None else number, content)
        return self.questions.wait(0.0)


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.questions.leave()


def test_an_answer_is_taken_once_under_the_number_of_its_question(asking):
    """Others are dropped unread: another silo's number or a future one, a stranger's, one after the round."""
    asking.ask()
    assert [(peer, kind) for peer, kind, _, _ in asking.links.sent] == [(name, ASK) for name in NAMES]
    assert [decode(content).silo for *_, content in asking.links.sent] == list(NAMES)
    own, content = asking.number("north"), asking.answers["north"]
    for number in (0, asking.number("south"), own + 100):
        assert asking.take("north", number) is None
        assert asking.take("stranger", own, content) is None
    arrived = asking.take("north")
    assert encode(arrived) == content
    assert asking.take("north") is None
    asking.questions.leave()
    asking.questions.send(decode(asking.links.sent[0][3]))
    assert asking.take("north", own) is None
    assert asking.take("south") is None


def test_what_is_no_answer_is_reported_and_not_kept(asking):
    asking.ask()
    answer = asking.answers["north"]
    for silo, content, problem in (
        ("north", b"", "must hold a message, got none"),
        ("south", answer + bytes(10**7), "must hold a message, got none"),
        ("east", answer[:-1], "must"),
        ("west", answer, "must come from the silo that it names"),
    ):
        arrived = asking.take(silo, content=content)
        assert isinstance(arrived, Unreadable)
        assert arrived.silo == silo
        assert problem in arrived.problem


def test_a_silo_that_returns_is_asked_again_a_few_times(asking):
    asking.ask()
    for _ in range(10):
        asking.questions.resend("west")
    to_west = [(number, content) for peer, _, number, content in asking.links.sent if peer == "west"]
    assert len(to_west) == 4
    assert len(set(to_west)) == 1, "the same question under the same number"
    assert isinstance(asking.take("west"), Message)
    asking.questions.resend("west")
    assert len(asking.links.sent) == len(NAMES) + 3, "a silo that has answered is not asked again"
    asking.links.there.remove("south")
    for _ in range(10):
        asking.questions.resend("south")  # it left again before it could be sent anything
    assert len(asking.links.sent) == len(NAMES) + 3
    asking.links.there.append("south")
    asking.questions.resend("south")
    assert asking.links.sent[-1][:2] == ("south", ASK)


def test_a_round_waits_some_seconds_for_a_missing_silo_and_to_the_deadline_for_a_connected_one(
    asking, monkeypatch
):
    asking.ask()
    for returns, seconds in ((1e-9, 0.1), (0.1, None)):
        monkeypatch.setattr(serving, "_RETURN_S", returns)
        began = time.monotonic()
        assert asking.questions.wait(seconds) is None
        assert time.monotonic() - began >= 0.1
        for name in NAMES[:3]:
            asking.take(name)
        asking.links.there[:] = NAMES[:3]
    assert asking.questions.waiting_for == ["west"]
    asking.stopped.set()
    with pytest.raises(serving._StoppedError):
        asking.questions.wait(None)


def test_a_round_says_how_long_it_is_open_and_what_is_left(asking):
    asking.ask()
    assert asking.questions.times["seconds_left"] == math.inf
    number = asking.number("north")
    asking.questions.take("north", number, asking.answers["north"])
    assert asking.questions.wait(60.0) is not None
    times = asking.questions.times
    assert 0 < times["seconds_open"] < 60 < times["seconds_open"] + times["seconds_left"]
    assert asking.questions.wait(0.0) is None
    assert asking.questions.times["seconds_left"] == 0
    asking.questions.leave()
    assert asking.questions.times["seconds_left"] == math.inf


def test_a_round_ends_without_a_deadline_when_no_silo_is_left_that_could_answer(asking, monkeypatch):
    """One refuses and one is not connected."""
    monkeypatch.setattr(serving, "_RETURN_S", 0.05)
    first, *others, last = NAMES
    asking.links.there.remove(last)

    def answer(question: Message) -> bytes:
        honest = asking.parties[question.silo].answer(question)
        refusal = Refusal(reason="no budget is left")
        return encode(replace(honest, body=refusal) if question.silo == first else honest)

    asking.links.on_send = lambda peer, number, raw: asking.questions.take(peer, number, answer(decode(raw)))
    coordinator = coordinator_of("fedpower", min_silos=1)
    drive(coordinator, asking.questions, Pace())
    assert all(tuple(closed.answers) == tuple(others) for closed in coordinator.history)


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kit]:
    folders = {party: tmp_path_factory.mktemp(party) for party in (COORDINATOR, RUNNER)}
    return {party: kit_of(write_study(folder), party, folder) for party, folder in folders.items()}


@pytest.fixture
def service(kits: dict[str, Kit], tmp_path: Path) -> CoordinatorService:
    made = CoordinatorService(kits[COORDINATOR])
    made.kit.folder = tmp_path / "kit"
    made.kit.folder.mkdir()
    assert made.links._accepts == {
        **dict.fromkeys(made.federation.silos, ANSWER),
        **dict.fromkeys((RUNNER, *VIEWERS), CALL),
    }
    made.links = FakeLinks("north", RUNNER)  # type: ignore[assignment]
    return made


def call(service: CoordinatorService, content: bytes | dict[str, Any]) -> tuple[Any, bytes]:
    packed = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    service._answer_call(RUNNER, 7, packed)
    peer, kind, number, reply = service.links.sent.pop()  # type: ignore[attr-defined]
    assert (peer, kind, number) == (RUNNER, REPLY, 7)
    head, _, more = reply.partition(b"\n")
    return json.loads(head), more


CALLS = (
    b"", b"no call", b"\xc1\xfe\x00", b"\x91" * 100_000,
    *map(msgspec.msgpack.encode, ([], None, {}, {"do": "shutdown"}, {"do": "_fetch"}, {"do": ["status"]})),
)  # fmt: skip
BAD_IDS: list[Any] = [
    None, 7, "", "0" * 15, "0" * 17, "0" * 15 + "G", "../../../../etc", "0123456789abcde/",
    RUN + "\n", RUN.upper(), [RUN], {"run": RUN},
]  # fmt: skip


def test_a_call_that_is_none_or_names_no_run_is_refused_without_a_word_of_what_went_wrong(service, caplog):
    with caplog.at_level(logging.ERROR):
        for content in CALLS:
            failed = {"error": "the coordinator could not do this; see its log"}
            assert call(service, content) == (failed, b"")
    assert caplog.text.count("refused a call of the runner") == len(CALLS)
    service._take("north", ANSWER, 1, b"an answer")  # before any run it is dropped
    service._change("north", True)
    for do in ("start", "fetch", "status"):
        for run in BAD_IDS if do != "status" else BAD_IDS[1:]:
            reply, more = call(service, {"do": do, "run": run})
            assert reply["error"].startswith("the name of a run must be 16 hexadecimal digits, got some")
            assert more == b""
    status, more = call(service, {"do": "status"})
    expected = {"connected": ["north"], "run": None, "under_way": False, "result": False}
    assert (status, more) == (expected, b"")
    assert not list(service.kit.folder.iterdir())


ODD_OFFSETS = (None, "x", -1, [0], 1e400)
ODD_FILES = (7, ["run.json"], {"a": 1}, True, "../rounds", "/etc/passwd", "", ".", "..", "run.json/",
             "./run.json", "run.json\0")  # fmt: skip


def test_a_result_is_listed_and_sent_in_pieces_and_nothing_else_is(service, monkeypatch):
    def fetch(**more: Any) -> tuple[Any, bytes]:
        return call(service, {"do": "fetch", "run": RUN, **more})

    def has_result() -> bool:
        status: dict[str, Any] = call(service, {"do": "status", "run": RUN})[0]
        return bool(status["result"])

    assert fetch() == ({"error": "a run must have a result, got one without a result so far"}, b"")
    assert not has_result()
    folder = service.kit.folder / "runs" / RUN / "result"
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(b'{"a": 1}\n')
    (folder / "empty").touch()
    (folder.parent / "rounds").write_bytes(b"what silos released")
    monkeypatch.setattr(serving, "PIECE_BYTES", 5)
    assert has_result()
    assert fetch()[0] == {"files": {"empty": 0, "run.json": 9}}
    pieces = [fetch(file="run.json", offset=offset)[1] for offset in (0, 5, 9, 10**12)]
    assert pieces == [b'{"a":', b" 1}\n", b"", b""]
    odd = [(file, offset) for file in ODD_FILES for offset in (0, *ODD_OFFSETS)]
    for file, offset in odd + [("run.json", offset) for offset in ODD_OFFSETS]:
        reply, more = fetch(file=file, offset=offset)
        assert "error" in reply
        assert more == b""
        if isinstance(file, str) and offset == 0:
            assert reply["error"].startswith("a file must be one of the result's, got another")


def test_a_run_is_started_again_after_its_end_and_not_twice_and_gives_way_to_another(service, monkeypatch):
    """The silo that is connected says nothing, and is waited for; none is, once the runner goes on."""

    def start(run: str, signatures: dict[str, str] = SIGNED) -> Any:
        asked = {"do": "start", "run": run, "content": CONTENT, "signatures": signatures}
        assert call(service, asked)[0] == {"run": run}
        return service._run

    first = start(RUN, {})
    assert start(RUN) is first
    assert first.is_alive()
    second = start("f" * 16)
    assert second is not first
    assert (first.is_alive(), first.state["reason"]) == (False, "the run was stopped")
    assert call(service, {"do": "status"})[0]["under_way"] is True
    second.stop()
    service.links.there.clear()  # type: ignore[attr-defined]
    for _ in range(2):
        run = start(RUN)
        assert run._proposal.signatures == SIGNED, "also those that came after the first start"
        assert call(service, {"do": "go on", "run": RUN}) == ({}, b"")
        run.join(30)
        state = call(service, {"do": "status"})[0]["run"]
        assert (state["run"], state["done"], state["again"]) == (RUN, False, False)
        assert "3 silos must approve the study, got north: absent; south: absent" in state["reason"]


def approval(
    service: CoordinatorService, study: StudyFile, says: dict[str, Any], *, go_on: bool
) -> RunThread:
    """Return a run whose silos say something to its proposal, one thing after the other."""
    run = RunThread(study, service.kit.folder / RUN, service.links, signatures={"key": "signed"})

    def answer(peer: str, number: int, content: bytes) -> None:
        asked = decode(content)
        assert isinstance(asked.body, Propose)
        assert (asked.silo, asked.body.signatures) == (peer, {"key": "signed"})
        said = says[peer].pop(0) if len(says[peer]) > 1 else says[peer][0]
        if said is not None:
            body = Standing(state=said, reason="our\x1b words") if isinstance(said, str) else said
            run.questions.take(peer, number, encode(replace(asked, body=body)))

    service.links.there[:] = list(says)  # type: ignore[attr-defined]
    service.links.on_send = answer  # type: ignore[attr-defined]
    if go_on:
        run.go_on.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "_ASK_AGAIN_S", 0.01)
        run._await_approval()
    return run


def test_rounds_begin_once_all_silos_have_decided(service, tmp_path):
    study = write_study(tmp_path, rounds={"min_silos": 2})
    says = {"north": ["waiting", "waiting", "approved"], "south": ["approved"], "east": ["refused"]}
    state = approval(service, study, says, go_on=False).state
    assert state["approved"]
    assert {name: one["state"] for name, one in state["standings"].items()} == {
        "north": "approved", "south": "approved", "east": "refused",
    }  # fmt: skip
    assert state["standings"]["east"]["reason"] == "our\N{REPLACEMENT CHARACTER} words"


def test_a_refusal_that_is_taken_back_while_others_are_waited_for_counts_no_more(service, tmp_path):
    study = write_study(tmp_path, rounds={"min_silos": 2})
    says = {"north": [*["waiting"] * 9, "approved"], "south": ["approved"], "east": ["refused", "approved"]}
    state = approval(service, study, says, go_on=False).state
    assert {one["state"] for one in state["standings"].values()} == {"approved"}


@pytest.mark.parametrize("third", ["waiting", None, Refusal(reason="no")])
def test_rounds_begin_with_enough_silos_once_the_runner_goes_on(third, service, tmp_path):
    study = write_study(tmp_path, rounds={"min_silos": 2, "grace": 0.1})
    says = {"north": ["approved"], "south": ["approved"], "east": [third]}
    assert approval(service, study, says, go_on=True).state["approved"]


def test_while_a_round_is_open_the_state_says_which_and_who_has_answered(service, tmp_path):
    run = RunThread(write_study(tmp_path), service.kit.folder / RUN, service.links)
    run._history.append(
        Round(number=0, kind="moment", step=0, asked=("north", "south"), refused={"south": "no"})
    )
    assert run.state["open"] is None, "before the study is approved"
    run._approved = True
    opened = run.state["open"]
    assert {opened.pop(name) > 0 for name in ("seconds_open", "seconds_left")} == {True}
    assert opened == {"round": 0, "kind": "moment", "answered": [], "refused": {"south": "no"}}
    run._record(run._history[0])
    assert run.state["open"] is None, "the next one is not asked yet"


def test_too_few_approvals_end_a_run_before_any_round(service, tmp_path):
    study = write_study(tmp_path)
    says = {"north": ["approved"], "south": ["refused"], "east": ["waiting"]}
    with pytest.raises(
        RefusedError, match=r"^3 silos must approve the study, got south: refused, our. words$"
    ):
        approval(service, study, says, go_on=False)


def test_a_study_of_other_parties_or_of_too_large_messages_is_not_begun(service, monkeypatch):
    for content, problem in (
        ({**CONTENT, "coordinator": {"host": "elsewhere"}}, "must be localhost:8002, as in the kits"),
        ({**CONTENT, "silos": {"names": ["west"]}}, "must be among those of federation 'heart-2026'"),
        ({"name": "heart"}, "must have 'columns'"),
    ):
        reply, _ = call(service, {"do": "start", "run": RUN, "content": content})
        assert problem in reply["error"]
    monkeypatch.setattr(serving, "MOST_BYTES", 1000)
    reply, _ = call(service, {"do": "start", "run": "1" * 16, "content": CONTENT})
    assert "messages of the study must have at most 1 kB, got 66.1 kB" in reply["error"]
    monkeypatch.setattr(serving, "MOST_HEADER_BYTES", 200)
    reply, _ = call(service, {"do": "start", "run": "1" * 16, "content": CONTENT})
    assert "the study must have at most 100 B" in reply["error"]
    assert not (service.kit.folder / "runs").exists()


def test_the_folders_of_the_last_runs_are_kept(service, monkeypatch):
    monkeypatch.setattr(serving, "KEPT_RUNS", 2)
    for digit in "1234":
        call(service, {"do": "start", "run": digit * 16, "content": CONTENT})
    service._run.stop()
    assert {path.name for path in (service.kit.folder / "runs").iterdir()} == {"3" * 16, "4" * 16}


def test_after_a_restart_silos_that_answered_before_are_proposed_the_study_again(service, tmp_path):
    study = write_study(tmp_path)
    run = RunThread(study, tmp_path / RUN, service.links)
    run.folder.mkdir()
    made = StudyRun(study, run=RUN, checkpoint=run.folder / "rounds")
    for question in made.coordinator.next():
        made.coordinator.receive(replace(question, body=Enrolment(n_rows=60, n_features=5)))
    run._open()
    state = run.state
    assert [closed["answered"] for closed in state["rounds"]] == [list(study.silos)]
    assert {one["state"] for one in state["standings"].values()} == {"absent"}


ENDS: list[tuple[Exception, str, bool, str]] = [  # what fails where, whether another start may help, why
    (ProtocolError("a checkpoint must be sound"), "_open", False, "a checkpoint must be sound"),
    (ProtocolError("round 1 needs 3 answers"), "_drive", True, "round 1 needs 3 answers"),
    (
        RefusedError("silo 'north' refused: no budget is left"), "_drive", False,
        "silo 'north' refused: no budget is left; releases stay recorded: fix the problem and run again "
        "with --resume",
    ),
    (ZeroDivisionError("of a number"), "_drive", False, "the coordinator failed; see its log"),
]  # fmt: skip


def test_how_a_run_ended_says_whether_another_start_could_help(service, caplog, tmp_path):
    """What nobody foresaw is in the log and nowhere else."""
    study = write_study(tmp_path)
    for error, where, again, reason in ENDS:
        run = RunThread(study, service.kit.folder / RUN, service.links)
        run._approved = True
        known = run.state
        assert (known["run"], known["study"], known["rounds"]) == (RUN, study.digest, [])
        with caplog.at_level(logging.ERROR), pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunThread, "_await_approval", Mock())
            patch.setattr(RunThread, where, Mock(side_effect=error))
            run.run()
            assert run.state == {**known, "done": False, "reason": reason, "again": again}
            assert str(error) in caplog.text
            run._rounds.append({"silent": ["south"]})
            run.run()
        is_refusal = isinstance(error, RefusedError)
        advised = "without south, the questions of this run differ from those of" in run.state["reason"]
        assert advised == is_refusal


# --- the runner: which run to take up, and whether another start could fare better ---


APPROVED = {name: {"state": "approved", "reason": ""} for name in SIZES}
AT_WORK = {"run": RUN, "rounds": [], "approved": True, "standings": APPROVED}
ALONE = {**APPROVED, "south": {"state": "absent", "reason": ""}, "east": {"state": "waiting", "reason": ""}}
TOO_FEW = {**AT_WORK, "done": False, "reason": "round 0 needs 3 answers", "again": True}
DONE = {**AT_WORK, "done": True, "reason": None}


class Scripted:
    """A coordinator whose states are written down beforehand; the last is repeated."""

    def __init__(self, *states: dict[str, Any] | None) -> None:
        self._states = list(states)
        self.started: list[str] = []
        self.fetched: list[str] = []

    def status(self) -> dict[str, Any]:
        now = None
        if self.started:
            now = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        under_way = now is not None and "done" not in now
        return {"connected": list(SIZES), "run": now, "under_way": under_way}

    def start(self, run: str, study: StudyFile, signatures: dict[str, str]) -> None:
        self.started.append(run)

    def fetch(self, run: str, destination: Path) -> None:
        self.fetched.append(run)


def test_a_runner_runs_one_study_at_a_time(follow, kits):
    with only_one(kits[RUNNER].tls, ""), pytest.raises(InputError, match="must run one study at a time"):
        follow(Scripted({}))


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, kits: dict[str, Kit], tmp_path: Path) -> Callable[..., Any]:
    """Return what takes up a run at coordinators one after the other."""
    monkeypatch.setattr(running, "_POLL_S", 0.0)
    monkeypatch.setattr(running, "_CONNECT_S", 0.01)
    study = write_study(tmp_path)
    (kits[RUNNER].folder / LAST_RUNS).write_text(json.dumps({study.digest: RUN}))

    def followed(*coordinators: Scripted) -> tuple[Any, list[str]]:
        left, said = list(coordinators), list[str]()

        @contextmanager
        def open_session(kit: Kit, *, patience: float) -> Iterator[Scripted]:
            yield left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(running, "open_session", open_session)
        say, on_round = said.append, lambda reported: None
        runner = Runner(kit=kits[RUNNER], study=study, patience=0.0, say=say, on_round=on_round)
        return runner.run(tmp_path, resume=True), said

    return followed


@pytest.mark.parametrize("left", ["no json", {"study": 1}, {"0" * 64: RUN}])
def test_where_no_run_of_this_study_was_begun_none_is_resumed(left, kits, follow):
    (kits[RUNNER].folder / LAST_RUNS).write_text(left if isinstance(left, str) else json.dumps(left))
    with pytest.raises(ProtocolError, match=r"must have a run of this study to resume, got"):
        follow(Scripted())


@pytest.mark.parametrize("lost", [None, {**AT_WORK, "run": "f" * 16}])
def test_a_coordinator_that_knows_nothing_of_the_run_resumes_it(lost, follow):
    """It was started again, and its checkpoint has the closed rounds."""
    first, second = Scripted(AT_WORK, lost), Scripted(AT_WORK, DONE)
    state, said = follow(first, second)
    assert state == DONE
    assert (first.started, second.started, second.fetched) == ([RUN], [RUN], [RUN])
    assert "the connection to the coordinator was lost; reconnecting" in said


@pytest.mark.parametrize(
    ("coordinator", "sentence", "starts"),
    [
        (Scripted(TOO_FEW), r"needs 3 answers: 6 starts in a row completed no round", 6),
        (Scripted({**TOO_FEW, "again": False}), r"^round 0 needs 3 answers$", 1),
        (
            Scripted({**AT_WORK, "approved": False, "standings": ALONE}),
            r"^3 silos must connect and approve, got 1 after 0 s; run again with --resume when you have so",
            1,
        ),
    ],
)
def test_a_run_in_which_nothing_happens_is_given_up_after_some_starts(coordinator, sentence, starts, follow):
    with pytest.raises(ProtocolError, match=sentence):
        follow(coordinator)
    assert coordinator.started == [RUN] * starts


class Answering:
    """Links to a coordinator that answers calls with bytes written down beforehand."""

    def __init__(self, *replies: bytes, late: int = 0):
        self._replies, self._late = list(replies), late
        self.calls: list[dict[str, Any]] = []

    def send(self, peer: str, kind: str, number: int, content: bytes) -> bool:
        self.calls.append(msgspec.msgpack.decode(content))
        if self._replies:
            self.into.put((number - self._late, self._replies.pop(0)))
        return True

    def session(self) -> CoordinatorSession:
        made = object.__new__(CoordinatorSession)
        made._number, made._replies, made._links = 0, queue.Queue(), self
        self.into = made._replies
        return made


def test_a_reply_that_is_none_or_an_error_is_reported_in_a_sentence_that_steers_no_terminal(monkeypatch):
    monkeypatch.setattr(running, "_CONNECT_S", 0.01)
    links = Answering(json.dumps({"error": "a run must\x1b[2J be named"}).encode() + b"\n")
    with pytest.raises(ProtocolError, match="a run must") as refused:
        links.session().status()
    assert "\x1b" not in str(refused.value)
    odd = {"run": {"reason": "a\x1b[2J", "rounds": [{"kind": "b\n", "silent\r": ["c\u202e", 1.5]}]}}
    status = Answering(json.dumps(odd).encode() + b"\n").session().status()
    assert status == {
        "run": {"reason": "a\ufffd[2J", "rounds": [{"kind": "b\ufffd", "silent\ufffd": ["c\ufffd", 1.5]}]}
    }
    for reply in (b"", b"[1]\n", b"\xff\xfe\n", b'{"a":' * 5000 + b"\n"):
        with pytest.raises(ProtocolError, match="must run fedpower, got something else"):
            Answering(reply).session().status()
    for links in (Answering(), Answering(b'{"connected": []}\n', late=1)):
        with pytest.raises(CoordinatorLostError):
            links.session().status()


def test_a_result_is_fetched_piece_by_piece_into_its_folder_and_nowhere_else(tmp_path):
    place = tmp_path / "result"
    place.mkdir()
    links = Answering(b'{"files": {"a.csv": 7, "empty": 0}}\n', b'{"file": "a.csv"}\n\n\nabc', b"{}\nde")
    links.session().fetch(RUN, place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {"a.csv": b"\n\nabcde", "empty": b""}
    assert [call.get("offset") for call in links.calls] == [None, 0, 5]
    with pytest.raises(CoordinatorLostError):
        Answering(b'{"files": {"a.csv": 5}}\n', b"{}\nab", b"{}\n").session().fetch(RUN, place)
    for name in ("../b.csv", "/etc/passwd", "..", ""):
        listed = json.dumps({"files": {name: 1}}).encode() + b"\n"
        with pytest.raises(ProtocolError, match="must be plain files, got a path"):
            Answering(listed, b"{}\nx").session().fetch(RUN, place)
    with pytest.raises(ProtocolError, match=r"a result must have at most 4\.29 GB, got"):
        Answering(b'{"files": {"a": 4000000000, "b": 4000000000}}\n').session().fetch(RUN, place)
    assert list(tmp_path.iterdir()) == [place]
