"""The coordinator's process without a network: one answer per question, and what a runner may call for."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from studies import RUN, kit_of, write_study

from federations import NAMES, coordinator_of, parties_of, study_of
from fedpower.engines.inprocess import Pace, paced
from fedpower.errors import ProtocolError, RefusedError
from fedpower.federation import coordinator as serving
from fedpower.federation.coordinator import CoordinatorService, Questions, RunThread
from fedpower.federation.kits import RUNNER
from fedpower.federation.links import ANSWER, ASK, CALL, REPLY
from fedpower.protocol.coordinator import MOST_ATTEMPTS, Unreadable, drive
from fedpower.protocol.messages import Message, Refusal, decode, encode


class FakeLinks:
    """Keeps what is sent; silos are connected as the test says."""

    def __init__(self, connected: tuple[str, ...] = NAMES) -> None:
        self.there = list(connected)
        self.sent: list[tuple[str, str, int, bytes]] = []
        self.on_send: Callable[[str, int, bytes], None] | None = None

    def send(self, peer: str, kind: str, number: int, content: bytes) -> bool:
        if peer not in self.there and peer != RUNNER:
            return False
        self.sent.append((peer, kind, number, content))
        if self.on_send is not None:
            self.on_send(peer, number, content)
        return True

    def connected(self) -> list[str]:
        return list(self.there)

    def number_for(self, silo: str) -> int:
        return next(number for peer, _, number, _ in self.sent if peer == silo)


@pytest.fixture
def links() -> FakeLinks:
    return FakeLinks()


@pytest.fixture
def stopped() -> threading.Event:
    return threading.Event()


def questions_of(links: FakeLinks, stopped: threading.Event | None = None) -> Questions:
    return Questions(links, study_of("fedpower"), stopped or threading.Event())  # type: ignore[arg-type]


@pytest.fixture
def asked(links: FakeLinks, stopped: threading.Event) -> Iterator[Any]:
    """Questions of a first round that are on their way, and the answers that silos give."""
    questions, parties = questions_of(links, stopped), parties_of("fedpower")
    answers = {}
    for question in coordinator_of("fedpower").next():
        questions.send(question)
        answers[question.silo] = parties[question.silo].answer(question)
    yield questions, answers
    questions.leave()


def test_an_answer_is_taken_once_under_the_number_of_its_question(asked: Any, links: FakeLinks) -> None:
    """Others are dropped unread: another silo's number or a future one, a stranger's, one after the round."""
    questions, answers = asked
    assert [(peer, kind) for peer, kind, _, _ in links.sent] == [(name, ASK) for name in NAMES]
    assert [decode(content).silo for *_, content in links.sent] == list(NAMES)
    own, content = links.number_for("north"), encode(answers["north"])
    for silo, number in (("north", 0), ("north", links.number_for("south")), ("north", own + 100)):
        questions.take(silo, number, content)
    questions.take("stranger", own, content)
    questions.take("stranger", 0, content)
    assert questions.wait(0.0) is None
    for _ in range(3):
        questions.take("north", own, content)
    arrived = questions.wait(0.0)
    assert isinstance(arrived, Message)
    assert encode(arrived) == content
    assert questions.wait(0.0) is None
    questions.leave()
    questions.send(replace(answers["north"], body=decode(links.sent[0][3]).body))
    questions.take("north", own, content)
    questions.take("south", links.number_for("south"), encode(answers["south"]))
    assert questions.wait(0.0) is None


def test_what_is_no_answer_is_reported_and_not_kept(asked: Any, links: FakeLinks) -> None:
    questions, answers = asked
    answer = encode(answers["north"])
    silos = dict(zip(NAMES, (b"", answer + bytes(10**7), answer[:-1], answer), strict=True))
    problems = ["must hold a message, got none"] * 2 + ["must", "must be its silo's own, got another's"]
    for (silo, content), problem in zip(silos.items(), problems, strict=True):
        questions.take(silo, links.number_for(silo), content)  # the last is north's answer from west
        assert all(len(content) < 10**6 for _, content in questions._arrived.queue)
        arrived = questions.wait(0.0)
        assert isinstance(arrived, Unreadable)
        assert arrived.silo == silo
        assert problem in arrived.problem


def test_a_silo_that_returns_is_asked_again_a_few_times(asked: Any, links: FakeLinks) -> None:
    questions, answers = asked
    for _ in range(10):
        questions.resend("west")
    to_west = [(number, content) for peer, _, number, content in links.sent if peer == "west"]
    assert len(to_west) == 4
    assert len(set(to_west)) == 1, "the same question under the same number"
    questions.take("west", to_west[0][0], encode(answers["west"]))
    assert isinstance(questions.wait(0.0), Message)
    questions.resend("west")
    assert len(links.sent) == len(NAMES) + 3, "a silo that has answered is not asked again"
    links.there.remove("south")
    for _ in range(10):
        questions.resend("south")  # it left again before it could be sent anything
    assert len(links.sent) == len(NAMES) + 3
    links.there.append("south")
    questions.resend("south")
    assert links.sent[-1][:2] == ("south", ASK)


def test_a_round_waits_some_seconds_for_a_missing_silo_and_to_the_deadline_for_a_connected_one(
    asked: Any, links: FakeLinks, stopped: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, answers = asked
    monkeypatch.setattr(serving, "_RETURN_S", 1e-9)
    began = time.monotonic()
    assert questions.wait(0.3) is None
    assert time.monotonic() - began >= 0.3
    monkeypatch.setattr(serving, "_RETURN_S", 0.2)
    for name in NAMES[:3]:
        questions.take(name, links.number_for(name), encode(answers[name]))
        questions.wait(0.0)
    links.there.remove("west")
    began = time.monotonic()
    assert questions.wait(None) is None
    assert time.monotonic() - began >= 0.2
    assert questions.waiting_for == ["west"]
    stopped.set()
    with pytest.raises(serving._StoppedError):
        questions.wait(None)


def answering(links: FakeLinks, answer: Callable[[Message], bytes]) -> Questions:
    """Return questions whose silos answer as soon as they are asked, through the queue."""
    questions = questions_of(links)
    links.on_send = lambda peer, number, content: questions.take(peer, number, answer(decode(content)))
    return questions


def test_a_round_does_not_wait_for_a_silo_that_refused_when_no_other_can_answer(
    links: FakeLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_RETURN_S", 0.1)
    parties = parties_of("fedpower")
    first, *others, last = NAMES
    links.there.remove(last)

    def answer(question: Message) -> bytes:
        honest = parties[question.silo].answer(question)
        refusal = Refusal(reason="no budget is left")
        return encode(replace(honest, body=refusal) if question.silo == first else honest)

    questions = answering(links, answer)
    coordinator = coordinator_of("fedpower", min_silos=1)
    drive(coordinator, paced(questions, coordinator, Pace()))  # no deadline would close a round
    assert all(tuple(closed.answers) == tuple(others) for closed in coordinator.history)


def test_what_a_silo_sends_that_is_no_message_is_asked_for_again_and_then_set_aside(links: FakeLinks) -> None:
    parties, spoils = parties_of("fedpower"), NAMES[0]
    questions = answering(
        links, lambda asked: b"" if asked.silo == spoils else encode(parties[asked.silo].answer(asked))
    )
    coordinator = coordinator_of("fedpower")
    with pytest.raises(ProtocolError, match="was set aside: an answer must hold a message, got none"):
        drive(coordinator, paced(questions, coordinator, Pace(deadline=1.0)))
    numbers = [number for peer, _, number, _ in links.sent if peer == spoils]
    assert len(numbers) == len(set(numbers)) == MOST_ATTEMPTS


# --- what a runner may call for ---


@pytest.fixture
def service(tmp_path: Path) -> CoordinatorService:
    made = CoordinatorService(kit_of(write_study(tmp_path), "coordinator", tmp_path / "kits"))
    assert made.links._accepts == {**dict.fromkeys(made.study.silos, ANSWER), RUNNER: CALL}
    made.links = FakeLinks(connected=("north", RUNNER))  # type: ignore[assignment]
    return made


def call(service: CoordinatorService, content: bytes | dict[str, Any]) -> tuple[Any, bytes]:
    """Return what a runner gets in reply, and whatever else is in it."""
    service._answer_call(7, content if isinstance(content, bytes) else json.dumps(content).encode())
    peer, kind, number, reply = service.links.sent.pop()  # type: ignore[attr-defined]
    assert (peer, kind, number) == (RUNNER, REPLY, 7)
    head, _, more = reply.partition(b"\n")
    return json.loads(head), more


CALLS = (
    b"", b"no json", b"\xff\xfe\x00", b"[]", b"7", b"null", b"{}", b'{"do": "shutdown"}', b'{"do": "_fetch"}',
    b'{"do": ["status"]}', b'{"do": null}', b"[" * 100_000,
)  # fmt: skip


def test_a_call_that_is_none_is_refused_without_a_word_of_what_went_wrong(
    service: CoordinatorService, caplog: pytest.LogCaptureFixture
) -> None:
    for content in CALLS:
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            failed = {"error": "the coordinator could not do this; its log says why"}
            assert call(service, content) == (failed, b"")
        assert "refused a call of the runner" in caplog.text
    service._take("north", ANSWER, 1, b"an answer")  # before any run it is dropped
    service._change("north", True)
    status, more = call(service, {"do": "status"})
    assert (status, more) == ({"connected": ["north"], "run": None, "under_way": False}, b"")


BAD_IDS: list[Any] = [
    None, 7, "", "0" * 15, "0" * 17, "0" * 15 + "G", "../../../../etc", "0123456789abcde/",
    RUN + "\n", RUN.upper(), [RUN], {"run": RUN},
]  # fmt: skip


def test_a_run_has_a_name_of_sixteen_digits_or_is_none(service: CoordinatorService) -> None:
    before = sorted(service.kit.folder.rglob("*"))
    for do in ("start", "fetch"):
        for run in BAD_IDS:
            reply, more = call(service, {"do": do, "run": run})
            assert reply["error"].startswith("a run must be named by 16 hexadecimal digits, got something")
            assert more == b""
    assert service._run is None
    assert sorted(service.kit.folder.rglob("*")) == before


@pytest.fixture
def result(service: CoordinatorService) -> Path:
    reply, more = call(service, {"do": "fetch", "run": RUN})
    assert (reply, more) == ({"error": "a run must have a result, got one that has none yet"}, b"")
    folder = service.kit.folder / "runs" / RUN / "result"
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(b'{"a": 1}\n')
    (folder / "empty").touch()
    (service.kit.folder / "runs" / RUN / "rounds").write_bytes(b"what silos released")
    return folder


def test_a_result_is_listed_and_sent_in_pieces(
    service: CoordinatorService, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PIECE_BYTES", 5)
    assert call(service, {"do": "fetch", "run": RUN})[0] == {"files": {"empty": 0, "run.json": 9}}
    pieces = [
        call(service, {"do": "fetch", "run": RUN, "file": "run.json", "offset": offset})[1]
        for offset in (0, 5, 9, 10**12)
    ]
    assert pieces == [b'{"a":', b" 1}\n", b"", b""]


ODD_OFFSETS = (None, "x", -1, [0], 1e400)
ODD_FILES = (7, ["run.json"], {"a": 1}, True, "../rounds", "/etc/passwd", "", ".", "..", "run.json/",
             "./run.json", "run.json\0")  # fmt: skip


def test_odd_files_and_offsets_get_no_byte(service: CoordinatorService, result: Path) -> None:
    odd = [(file, offset) for file in ODD_FILES for offset in (0, *ODD_OFFSETS)]
    for file, offset in odd + [("run.json", offset) for offset in ODD_OFFSETS]:
        reply, more = call(service, {"do": "fetch", "run": RUN, "file": file, "offset": offset})
        assert "error" in reply
        assert more == b""
        if isinstance(file, str) and offset == 0:
            assert reply["error"].startswith("a file must be one of the result's, got another")


# --- how runs end ---


def test_a_run_without_silos_ends_and_may_be_started_again(
    service: CoordinatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_RETURN_S", 0.0)
    service.links.there.clear()  # type: ignore[attr-defined]
    for _ in range(2):
        assert call(service, {"do": "start", "run": RUN})[0] == {"run": RUN}
        assert service._run is not None
        service._run.join(30)
        state = call(service, {"do": "status"})[0]["run"]
        assert (state["run"], state["done"], state["again"]) == (RUN, False, True)
        assert "needs 3 answers and got 0" in state["reason"]


def test_a_run_under_way_is_not_started_twice_and_gives_way_to_another(service: CoordinatorService) -> None:
    """The silo that is connected says nothing, and is waited for."""
    call(service, {"do": "start", "run": RUN})
    first = service._run
    call(service, {"do": "start", "run": RUN})
    assert service._run is first
    assert first is not None
    assert first.is_alive()
    call(service, {"do": "start", "run": "f" * 16})
    assert not first.is_alive()
    assert first.state["reason"] == "the run was stopped"
    assert service._run is not first
    assert call(service, {"do": "status"})[0]["under_way"] is True
    assert service._run is not None
    service._run.stop()


class Failing(RunThread):
    """A run whose opening, or whose rounds, end in an error."""

    def __init__(self, service: CoordinatorService, error: Exception, *, opens: bool = True) -> None:
        super().__init__(service.kit, RUN, service.links)
        self.error, self.opens = error, opens

    def _open(self) -> Any:
        if not self.opens:
            raise self.error
        return super()._open()

    def _drive(self, node: object) -> None:
        raise self.error


ENDS: list[tuple[Exception, bool, bool]] = [
    (ProtocolError("a checkpoint must be sound"), False, False),
    (ProtocolError("round 1 needs 3 answers"), True, True),
    (RefusedError("silo 'north' refused: no budget is left"), True, False),
    (ZeroDivisionError("of a silo's number"), True, False),
]


AFTER_REFUSAL = "; what was released stays recorded: fix that and run again with --resume"


@pytest.mark.parametrize("end", ENDS, ids=str)
def test_how_a_run_ended_says_whether_another_start_could_help(
    end: tuple[Exception, bool, bool], service: CoordinatorService, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody foresaw is in the log and nowhere else."""
    error, opens, again = end
    run = Failing(service, error, opens=opens)
    assert json.loads(json.dumps(run.state)) == {"run": RUN, "rounds": [], "waiting_for": []}
    with caplog.at_level(logging.ERROR):
        run.run()
    unforeseen = isinstance(error, ZeroDivisionError)
    reason = "the coordinator failed; its log says why" if unforeseen else str(error)
    reason += AFTER_REFUSAL if isinstance(error, RefusedError) else ""
    assert run.state == {
        "run": RUN,
        "rounds": [],
        "waiting_for": [],
        "done": False,
        "reason": reason,
        "again": again,
    }
    assert str(error) in caplog.text
    if isinstance(error, RefusedError):
        run._rounds.append({"silent": ["south"]})
        run.run()
        assert "without south, so it asks other questions than a complete one" in run.state["reason"]
