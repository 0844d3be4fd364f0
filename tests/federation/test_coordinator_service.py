"""The coordinator's process without a network: one answer a question, and what a runner may call for."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies import write_study

from federations import NAMES, coordinator_of, parties_of, study_of
from fedpower.engines.inprocess import Pace, paced
from fedpower.errors import InputError, ProtocolError, RefusedError
from fedpower.federation import coordinator as serving
from fedpower.federation.certificates import COORDINATOR, RUNNER
from fedpower.federation.coordinator import CoordinatorService, Questions, RunThread
from fedpower.federation.links import ANSWER, ASK, CALL, REPLY
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.coordinator import MOST_ATTEMPTS, Unreadable, drive
from fedpower.protocol.messages import Message, Refusal, decode, encode

RUN = "0123456789abcdef"


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


@pytest.fixture
def links() -> FakeLinks:
    return FakeLinks()


@pytest.fixture
def stopped() -> threading.Event:
    return threading.Event()


@pytest.fixture
def case() -> str:
    return "fedpower"


@pytest.fixture
def asked(case: str, links: FakeLinks, stopped: threading.Event) -> Iterator[Any]:
    """Questions of a first round that are on their way, and the answers that silos give."""
    coordinator = coordinator_of(case)
    questions = Questions(links, coordinator, study_of(case), stopped)  # type: ignore[arg-type]
    round_of = {each.silo: each for each in coordinator.next()}
    for each in round_of.values():
        questions.send(each)
    parties = parties_of(case)
    answers = {name: parties[name].answer(each) for name, each in round_of.items()}
    yield questions, answers
    questions.leave()


def number_for(links: FakeLinks, silo: str) -> int:
    return next(number for peer, _, number, _ in links.sent if peer == silo)


def test_each_silo_is_sent_its_own_question_under_its_own_number(asked: Any, links: FakeLinks) -> None:
    assert [(peer, kind) for peer, kind, _, _ in links.sent] == [(name, ASK) for name in NAMES]
    assert len({number for _, _, number, _ in links.sent}) == len(NAMES)
    assert [decode(content).silo for *_, content in links.sent] == list(NAMES)


def test_an_answer_is_taken_once(asked: Any, links: FakeLinks) -> None:
    questions, answers = asked
    number, content = number_for(links, "north"), encode(answers["north"])
    for _ in range(3):
        questions.take("north", number, content)
    arrived = questions.wait(0.0)
    assert isinstance(arrived, Message)
    assert encode(arrived) == content
    assert questions.wait(0.0) is None


def test_answers_to_no_open_question_are_dropped_unread(asked: Any, links: FakeLinks) -> None:
    """Under no number, another silo's, one of the future; of a stranger; and after the round."""
    questions, answers = asked
    content, own = encode(answers["north"]), number_for(links, "north")
    for silo, number in (("north", 0), ("north", number_for(links, "south")), ("north", own + 100)):
        questions.take(silo, number, content)
    questions.take("stranger", own, content)
    questions.take("stranger", 0, content)
    assert questions.wait(0.0) is None
    questions.leave()
    questions.take("north", own, content)
    assert questions.wait(0.0) is None


def test_an_answer_of_the_round_before_does_not_count_in_the_next(asked: Any, links: FakeLinks) -> None:
    questions, answers = asked
    late = number_for(links, "north")
    questions.leave()
    questions.send(replace(answers["north"], body=decode(links.sent[0][3]).body))
    questions.take("north", late, encode(answers["north"]))
    assert questions.wait(0.0) is None


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda content: b"", "an answer must hold a message, got none"),
        (lambda content: content + bytes(10**7), "an answer must hold a message, got none"),
        (lambda content: content[:-1], "must"),
        (lambda content: b"fedpower1\n" + bytes(100), "checksum"),
    ],
    ids=["empty", "oversized", "cut short", "no message"],
)
def test_what_is_no_answer_is_reported_and_not_kept(
    spoil: Callable[[bytes], bytes], problem: str, asked: Any, links: FakeLinks
) -> None:
    questions, answers = asked
    spoilt = spoil(encode(answers["north"]))
    questions.take("north", number_for(links, "north"), spoilt)
    kept = list(questions._arrived.queue)
    assert all(len(content) < 10**6 for _, content in kept)
    arrived = questions.wait(0.0)
    assert isinstance(arrived, Unreadable)
    assert arrived.silo == "north"
    assert problem in arrived.problem


def test_an_answer_in_another_s_name_is_not_taken(asked: Any, links: FakeLinks) -> None:
    """Who sent it is what the certificate says."""
    questions, answers = asked
    questions.take("south", number_for(links, "south"), encode(answers["north"]))
    arrived = questions.wait(0.0)
    assert arrived == Unreadable(silo="south", problem="an answer must be its silo's own, got another's")


def test_a_silo_that_returns_is_asked_again_and_not_for_ever(asked: Any, links: FakeLinks) -> None:
    questions, answers = asked
    for _ in range(10):
        links.there.remove("west")
        questions.change("west", False)
        links.there.append("west")
        questions.change("west", True)
    to_west = [(number, content) for peer, _, number, content in links.sent if peer == "west"]
    assert len(to_west) == 4
    assert len(set(to_west)) == 1, "the same question under the same number"
    questions.take("west", to_west[0][0], encode(answers["west"]))
    assert isinstance(questions.wait(0.0), Message)
    questions.change("west", True)
    assert len(links.sent) == len(NAMES) + 3, "who has answered is not asked again"


def test_a_silo_that_is_not_there_is_asked_when_it_comes(stopped: threading.Event) -> None:
    links = FakeLinks(connected=NAMES[:3])
    coordinator = coordinator_of("fedpower")
    questions = Questions(links, coordinator, study_of("fedpower"), stopped)  # type: ignore[arg-type]
    for each in coordinator.next():
        questions.send(each)
    for _ in range(10):
        questions.change("west", True)  # it went again before it could be sent anything
    assert "west" not in {peer for peer, *_ in links.sent}
    links.there.append("west")
    questions.change("west", True)
    assert [peer for peer, *_ in links.sent] == list(NAMES)


def test_a_round_waits_for_a_missing_silo_for_some_seconds_and_no_longer(
    asked: Any, links: FakeLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, answers = asked
    monkeypatch.setattr(serving, "_RETURN_S", 0.2)
    for name in NAMES[:3]:
        questions.take(name, number_for(links, name), encode(answers[name]))
        questions.wait(0.0)
    links.there.remove("west")
    began = time.monotonic()
    assert questions.wait(None) is None
    assert time.monotonic() - began >= 0.2
    assert questions.gone == ("west",)
    assert questions.waiting_for == ("west",)


def test_a_silo_that_is_connected_is_waited_for_until_the_deadline(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, _ = asked
    monkeypatch.setattr(serving, "_RETURN_S", 1e-9)
    began = time.monotonic()
    assert questions.wait(0.3) is None
    assert time.monotonic() - began >= 0.3


def test_a_run_that_is_told_to_stop_waits_for_nobody(asked: Any, stopped: threading.Event) -> None:
    questions, _ = asked
    threading.Timer(0.1, stopped.set).start()
    with pytest.raises(serving._StoppedError):
        questions.wait(None)


def answering(links: FakeLinks, answer: Callable[[Message], bytes | None]) -> Questions:
    """Return questions whose silos answer as soon as they are asked, through the queue."""
    coordinator = coordinator_of("fedpower")
    questions = Questions(links, coordinator, study_of("fedpower"), threading.Event())  # type: ignore[arg-type]

    def on_send(peer: str, number: int, content: bytes) -> None:
        found = answer(decode(content))
        if found is not None:
            questions.take(peer, number, found)

    links.on_send = on_send
    return questions


def test_a_round_does_not_wait_for_a_silo_that_refused_when_no_other_can_answer(
    links: FakeLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_RETURN_S", 0.1)
    parties = parties_of("fedpower")
    first, *others, last = NAMES
    links.there.remove(last)

    def answer(question: Message) -> bytes:
        found = parties[question.silo].answer(question)
        if question.silo == first:
            found = replace(found, body=Refusal(reason="no budget is left"))
        return encode(found)

    questions = answering(links, answer)
    coordinator = coordinator_of("fedpower", min_silos=1)
    questions._coordinator = coordinator
    drive(coordinator, paced(questions, coordinator, Pace()))  # no deadline would close a round
    assert all(tuple(each.answers) == tuple(others) for each in coordinator.history)


def test_what_a_silo_sends_that_is_no_message_is_asked_for_again_and_then_set_aside(links: FakeLinks) -> None:
    parties = parties_of("fedpower")
    spoils = NAMES[0]

    def answer(question: Message) -> bytes:
        return b"" if question.silo == spoils else encode(parties[question.silo].answer(question))

    questions = answering(links, answer)
    coordinator = questions._coordinator
    with pytest.raises(ProtocolError, match="was set aside: an answer must hold a message, got none"):
        drive(coordinator, paced(questions, coordinator, Pace(deadline=1.0)))
    numbers = [number for peer, _, number, _ in links.sent if peer == spoils]
    assert len(numbers) == len(set(numbers)) == MOST_ATTEMPTS


@pytest.fixture
def service(tmp_path: Path) -> CoordinatorService:
    write_study(tmp_path)
    made = CoordinatorService(tmp_path)
    made.links = FakeLinks(connected=("north",))  # type: ignore[assignment]
    return made


def call(service: CoordinatorService, content: bytes | dict[str, Any]) -> tuple[Any, bytes]:
    """Return what a runner gets in reply, and whatever else is in it."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    service._answer_call(7, text)
    peer, kind, number, reply = service.links.sent.pop()  # type: ignore[attr-defined]
    assert (peer, kind, number) == (RUNNER, REPLY, 7)
    head, _, more = reply.partition(b"\n")
    return json.loads(head), more


def test_who_may_send_what_is_settled_before_anybody_connects(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    links = CoordinatorService(tmp_path).links
    assert links._accepts == {**dict.fromkeys(study.silos, ANSWER), RUNNER: CALL}
    assert COORDINATOR not in links._accepts


def test_the_status_names_silos_that_are_connected_and_no_runner(service: CoordinatorService) -> None:
    service.links.there.append(RUNNER)  # type: ignore[attr-defined]
    found, more = call(service, {"do": "status"})
    assert (found["connected"], found["run"], found["under_way"]) == (["north"], None, False)
    assert more == b""


NOT_DONE = "the coordinator could not do this; its log says why"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json",
        b"\xff\xfe\x00",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"do": "shutdown"}',
        b'{"do": "_fetch"}',
        b'{"do": ["status"]}',
        b'{"do": null}',
        b"[" * 100_000,
    ],
)
def test_a_call_that_is_none_is_refused_without_a_word_of_what_went_wrong(
    content: bytes, service: CoordinatorService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert call(service, content) == ({"error": NOT_DONE}, b"")
    assert "refused a call of the runner" in caplog.text
    assert service._run is None


BAD_IDS: list[Any] = [
    None, 7, "", "x", "0" * 15, "0" * 17, "0" * 15 + "G", "../../../../etc", "0123456789abcde/",
    RUN + "\n", RUN.upper(), [RUN], {"run": RUN},
]  # fmt: skip


@pytest.mark.parametrize("run", BAD_IDS)
@pytest.mark.parametrize("do", ["start", "fetch"])
def test_a_run_has_a_name_of_sixteen_digits_or_is_none(
    do: str, run: Any, service: CoordinatorService
) -> None:
    before = sorted(service.kit.rglob("*"))
    found, more = call(service, {"do": do, "run": run})
    assert found["error"].startswith("a run must be named by 16 hexadecimal digits, got something")
    assert more == b""
    assert service._run is None
    assert sorted(service.kit.rglob("*")) == before


@pytest.fixture
def result(service: CoordinatorService) -> Path:
    folder = service.place(RUN) / "result"
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(b'{"a": 1}\n')
    (folder / "empty").touch()
    (service.place(RUN) / "rounds.journal").write_bytes(b"what silos released")
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


@pytest.mark.parametrize(
    "name", ["../rounds.journal", "/etc/passwd", "", ".", "..", "run.json/", "./run.json", "run.json\0"]
)
def test_a_file_that_is_none_of_the_result_s_is_not_sent(
    name: str, service: CoordinatorService, result: Path
) -> None:
    found, more = call(service, {"do": "fetch", "run": RUN, "file": name, "offset": 0})
    assert found["error"].startswith("a file must be one of the result's, got another")
    assert more == b""


@pytest.mark.parametrize("file", [7, ["run.json"], {"a": 1}, True])
@pytest.mark.parametrize("offset", [0, None, "x", -1, [0], 1e400])
def test_odd_files_and_offsets_get_no_byte(
    file: Any, offset: Any, service: CoordinatorService, result: Path
) -> None:
    found, more = call(service, {"do": "fetch", "run": RUN, "file": file, "offset": offset})
    assert "error" in found
    assert more == b""


@pytest.mark.parametrize("offset", [None, "x", -1, [0], 1e400])
def test_an_odd_offset_gets_no_byte(offset: Any, service: CoordinatorService, result: Path) -> None:
    found, more = call(service, {"do": "fetch", "run": RUN, "file": "run.json", "offset": offset})
    assert "error" in found
    assert more == b""


def test_a_result_that_is_not_there_yet_is_told_without_a_path(service: CoordinatorService) -> None:
    found, more = call(service, {"do": "fetch", "run": RUN})
    assert found == {"error": "a run must have a result, got one that has none yet; finish it first"}
    assert more == b""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds wait for nobody who is not there."""
    monkeypatch.setattr(serving, "_RETURN_S", 0.0)


def wait_until_over(service: CoordinatorService) -> dict[str, Any]:
    assert service._run is not None
    service._run._thread.join(30)
    state: dict[str, Any] = call(service, {"do": "status"})[0]["run"]
    return state


@pytest.mark.usefixtures("quick")
def test_a_run_without_silos_ends_and_may_be_started_again(service: CoordinatorService) -> None:
    service.links.there.clear()  # type: ignore[attr-defined]
    for _ in range(2):
        assert call(service, {"do": "start", "run": RUN})[0] == {"run": RUN}
        state = wait_until_over(service)
        assert (state["run"], state["done"], state["again"]) == (RUN, False, True)
        assert "needs 3 answers and got 0" in state["reason"]
    assert (service.place(RUN) / "rounds.journal").is_file()


def test_a_run_under_way_is_not_started_twice_and_gives_way_to_another(service: CoordinatorService) -> None:
    """The silo that is connected says nothing, and is waited for."""
    call(service, {"do": "start", "run": RUN})
    first = service._run
    call(service, {"do": "start", "run": RUN})
    assert service._run is first
    assert first is not None
    assert first.under_way
    call(service, {"do": "start", "run": "f" * 16})
    assert not first.under_way
    assert first.state["reason"] == "the run was stopped"
    assert service._run is not first
    assert call(service, {"do": "status"})[0]["under_way"] is True
    assert service._run is not None
    service._run.stop()


class Failing(RunThread):
    """A run whose opening, or whose rounds, end in an error."""

    def __init__(self, service: CoordinatorService, error: Exception, *, opens: bool = True) -> None:
        super().__init__(service, RUN)
        self.error, self.opens = error, opens

    def _open(self) -> Any:
        if not self.opens:
            raise self.error
        return super()._open()

    def _drive(self, node: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "opens", "again", "refused"),
    [
        (ProtocolError("a checkpoint must be sound"), False, False, False),
        (InputError("a checkpoint must be sound"), False, False, False),
        (ProtocolError("round 1 needs 3 answers"), True, True, False),
        (ProtocolError("silo 'refused: no' is silent"), True, True, False),
        (RefusedError("silo 'north' refused: no budget is left"), True, True, True),
        (InputError("n_participants must lie between 1 and 3"), True, False, False),
    ],
)
def test_how_a_run_ended_says_whether_another_start_could_help(
    error: Exception, opens: bool, again: bool, refused: bool, service: CoordinatorService
) -> None:
    run = Failing(service, error, opens=opens)
    run._go()
    ended = {"done": False, "reason": str(error), "again": again, "refused": refused}
    assert {name: run.state[name] for name in ended} == ended


def test_what_nobody_foresaw_is_in_the_log_and_nowhere_else(
    service: CoordinatorService, caplog: pytest.LogCaptureFixture
) -> None:
    run = Failing(service, ZeroDivisionError("of a silo's number"))
    with caplog.at_level(logging.ERROR):
        run._go()
    assert run.state["reason"] == "the coordinator failed; its log says why"
    assert "of a silo's number" in caplog.text


def test_a_state_is_what_a_runner_can_read(service: CoordinatorService, tmp_path: Path) -> None:
    run = RunThread(service, RUN)
    assert json.loads(json.dumps(run.state)) == {
        "run": RUN, "rounds": [], "waiting_for": [], "gone": [], "seconds": {},
    }  # fmt: skip


def test_answers_that_come_before_any_run_are_dropped(service: CoordinatorService, tmp_path: Path) -> None:
    service._take("north", ANSWER, 1, b"an answer")
    service._change("north", True)
    assert service._run is None


def test_the_study_of_the_kit_is_the_study_that_is_run(tmp_path: Path) -> None:
    study: StudyFile = write_study(tmp_path)
    assert CoordinatorService(tmp_path).study.digest == study.digest
