"""The runner's decisions: which run to take up, and whether another start could fare better."""

import json
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from studies import write_study

from fedpower.errors import ProtocolError
from fedpower.federation import runner as running
from fedpower.federation.runner import LAST_RUN, CoordinatorLostError, CoordinatorSession, Runner


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A runner's kit but for its keys: nobody is contacted here."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "rootCA.pem").touch()
    (tmp_path / "startup" / "party").write_text("runner")
    write_study(tmp_path)
    return tmp_path


def runner_with(kit: Path, said: list[str]) -> Runner:
    return Runner(kit=kit, patience=0.0, say=said.append, on_round=lambda reported: None)


@pytest.mark.parametrize("left", [None, "", "no json"])
def test_where_no_run_was_begun_none_is_resumed(left: str | None, kit: Path, tmp_path: Path) -> None:
    if left is not None:
        (kit / LAST_RUN).write_text(left)
    with pytest.raises(ProtocolError, match=r"a run to resume, got no trace .*; run without --res"):
        runner_with(kit, []).run(tmp_path / "out", resume=True)


@pytest.mark.parametrize("reported", [{}, [], {"study": "0" * 64}, {"run": "a"}, {"study": 1, "run": 2}])
def test_a_trace_that_names_no_run_is_no_trace(reported: Any, kit: Path, tmp_path: Path) -> None:
    (kit / LAST_RUN).write_text(json.dumps(reported))
    with pytest.raises(ProtocolError, match="run without --resume"):
        runner_with(kit, []).run(tmp_path / "out", resume=True)


def test_the_last_run_of_another_study_is_not_resumed(kit: Path, tmp_path: Path) -> None:
    (kit / LAST_RUN).write_text(json.dumps({"study": "0" * 64, "run": "0123456789abcdef"}))
    with pytest.raises(ProtocolError, match=r"must be of this study, got one of 0{12}; run"):
        runner_with(kit, []).run(tmp_path / "out", resume=True)


def test_a_run_that_cannot_be_opened_is_not_tried_again(kit: Path) -> None:
    said: list[str] = []
    with pytest.raises(ProtocolError, match=r"^a checkpoint must begin as fedpower writes it$"):
        runner_with(kit, said)._check_worth_another_start(
            {"reason": "a checkpoint must begin as fedpower writes it", "again": False}
        )
    assert said == []


def test_a_refusal_is_told_with_what_to_do(kit: Path) -> None:
    state = {"reason": "silo 'north' refused: no budget is left", "again": True, "refused": True}
    with pytest.raises(ProtocolError, match=r"no budget is left; .* run again with --resume"):
        runner_with(kit, [])._check_worth_another_start(state)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"reason": "round 1 needs 3 answers", "again": True, "refused": False},
        {"reason": "bring back silo 'refused: no'", "again": True, "refused": False},
    ],
)
def test_what_may_be_better_another_time_is_taken_up_again(state: dict[str, Any], kit: Path) -> None:
    runner_with(kit, [])._check_worth_another_start(state)


RUN = "0123456789abcdef"
SILOS = ["north", "south", "east"]
AT_WORK = {"run": RUN, "rounds": [], "gone": []}
TOO_FEW = {**AT_WORK, "done": False, "reason": "round 0 needs 3 answers", "again": True}
DONE = {**AT_WORK, "done": True, "reason": None}


class Told:
    """A coordinator whose words are written down beforehand; the last is said for ever."""

    def __init__(self, *looks: dict[str, Any] | None, connected: list[str] = SILOS) -> None:
        self._looks = list(looks)
        self._connected = connected
        self.started: list[str] = []
        self.fetched: list[str] = []

    def status(self) -> dict[str, Any]:
        if not self.started:
            return {"connected": self._connected, "run": None, "under_way": False}
        now = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        under_way = now is not None and "done" not in now
        return {"connected": self._connected, "run": now, "under_way": under_way}

    def start(self, run: str) -> None:
        self.started.append(run)

    def fetch(self, run: str, destination: Path) -> None:
        self.fetched.append(run)


@pytest.fixture
def told_by(monkeypatch: pytest.MonkeyPatch, kit: Path) -> Callable[..., tuple[Runner, list[str]]]:
    """Return what makes a runner that takes up a run at coordinators one after the other."""
    monkeypatch.setattr(running, "_POLL_S", 0.0)
    record = {"study": running.kit_study(kit, "runner").digest, "run": RUN}
    (kit / LAST_RUN).write_text(json.dumps(record))

    def made(*coordinators: Told) -> tuple[Runner, list[str]]:
        left, said = list(coordinators), []

        @contextmanager
        def open_session(kit: Path, *, patience: float) -> Iterator[Told]:
            yield left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(running, "open_session", open_session)
        return runner_with(kit, said), said

    return made


def test_a_run_that_ended_is_fetched_and_waited_for_no_longer(
    told_by: Callable[..., Any], tmp_path: Path
) -> None:
    coordinator = Told(AT_WORK, DONE)
    runner, said = told_by(coordinator)
    assert runner.run(tmp_path, resume=True) == DONE
    assert (coordinator.started, coordinator.fetched) == ([RUN], [RUN])
    assert said == [f"run {RUN}: asking north, south, east"]


@pytest.mark.parametrize("lost", [None, {**AT_WORK, "run": "f" * 16}])
def test_a_coordinator_that_knows_nothing_of_the_run_is_told_to_go_on_with_it(
    lost: dict[str, Any] | None, told_by: Callable[..., Any], tmp_path: Path
) -> None:
    """It was started again, and its checkpoint has the closed rounds."""
    first, second = Told(AT_WORK, lost), Told(AT_WORK, DONE)
    runner, said = told_by(first, second)
    assert runner.run(tmp_path, resume=True) == DONE
    assert (first.started, second.started) == ([RUN], [RUN])
    assert "the connection to the coordinator was lost; trying to find it again" in said


def test_a_run_in_which_nothing_happens_is_given_up_after_some_starts(
    told_by: Callable[..., Any], tmp_path: Path
) -> None:
    coordinator = Told(TOO_FEW)
    runner, _ = told_by(coordinator)
    with pytest.raises(ProtocolError, match=r"needs 3 answers: no round was closed in 6 starts"):
        runner.run(tmp_path, resume=True)
    assert coordinator.started == [RUN] * 6


def test_a_coordinator_that_is_lost_again_and_again_is_given_up(
    told_by: Callable[..., Any], tmp_path: Path
) -> None:
    runner, _ = told_by(Told(None))
    with pytest.raises(ProtocolError, match="ended before the run did: no round was closed in 6 starts"):
        runner.run(tmp_path, resume=True)


def test_too_few_silos_are_told_with_whom_to_start(told_by: Callable[..., Any], tmp_path: Path) -> None:
    coordinator = Told(DONE, connected=["north"])
    runner, said = told_by(coordinator)
    sentence = r"^3 silos must be connected, got 1 after 0 s; start south, east and run again with --r"
    with pytest.raises(ProtocolError, match=sentence):
        runner.run(tmp_path, resume=True)
    assert said == ["waiting for south, east to connect, 0 s at most"]
    assert coordinator.started == []


class Answering:
    """Links to a coordinator that answers calls with bytes written down beforehand."""

    def __init__(self, *replies: bytes, numbered: Callable[[int], int] = lambda number: number):
        self._replies = list(replies)
        self._numbered = numbered
        self.calls: list[dict[str, Any]] = []

    def send(self, peer: str, kind: str, number: int, content: bytes) -> bool:
        self.calls.append(json.loads(content))
        if self._replies:
            self.into.put((self._numbered(number), self._replies.pop(0)))
        return True


def session_with(links: Answering, monkeypatch: pytest.MonkeyPatch) -> CoordinatorSession:
    monkeypatch.setattr(running, "_CONNECT_S", 0.01)
    made = object.__new__(CoordinatorSession)
    made._number, made._replies, made._links = 0, queue.Queue(), links
    links.into = made._replies
    return made


def test_an_error_of_the_coordinator_is_told_without_what_a_terminal_would_obey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = Answering(json.dumps({"error": "a run must\x1b[2J be named"}).encode() + b"\n")
    with pytest.raises(ProtocolError, match="a run must") as told:
        session_with(links, monkeypatch).start("x")
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize("reply", [b"", b"no json\n", b"[1]\n", b"7\n", b"\xff\xfe\n"])
def test_a_reply_that_is_none_is_told_in_a_sentence(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProtocolError, match="must answer as fedpower does, got something else"):
        session_with(Answering(reply), monkeypatch).status()


def test_a_coordinator_that_does_not_answer_this_call_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Answering(b'{"connected": []}\n', numbered=lambda number: number - 1)
    for links in (Answering(), late):
        with pytest.raises(CoordinatorLostError):
            session_with(links, monkeypatch).status()


def test_a_result_is_fetched_piece_by_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    links = Answering(b'{"files": {"a.csv": 7, "empty": 0}}\n', b'{"file": "a.csv"}\n\n\nabc', b"{}\nde")
    session_with(links, monkeypatch).fetch(RUN, tmp_path)
    assert (tmp_path / "a.csv").read_bytes() == b"\n\nabcde"
    assert (tmp_path / "empty").read_bytes() == b""
    assert [call.get("offset") for call in links.calls] == [None, 0, 5]


@pytest.mark.parametrize("name", ["../a.csv", "/etc/passwd", "a/b", "..", ""])
def test_a_result_is_written_into_its_folder_and_nowhere_else(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "result"
    place.mkdir()
    listed = json.dumps({"files": {name: 1}}).encode() + b"\n"
    with pytest.raises(ProtocolError, match="must be plain files, got a path"):
        session_with(Answering(listed, b"{}\nx"), monkeypatch).fetch(RUN, place)
    assert list(tmp_path.rglob("*")) == [place]


def test_a_result_whose_file_ends_early_is_not_taken_for_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    links = Answering(b'{"files": {"a.csv": 5}}\n', b"{}\nab", b"{}\n")
    with pytest.raises(CoordinatorLostError):
        session_with(links, monkeypatch).fetch(RUN, tmp_path)
