"""The runner's decisions: which run to take up, and whether another start could fare better."""

import json
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from studies import RUN, SIZES, kit_of, write_study

from fedpower.errors import ProtocolError
from fedpower.federation import runner as running
from fedpower.federation.kits import Kit
from fedpower.federation.runner import LAST_RUN, CoordinatorLostError, CoordinatorSession, Runner


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    return kit_of(write_study(tmp_path), "runner", tmp_path / "runner").folder


def runner_with(kit: Path, said: list[str]) -> Runner:
    return Runner(kit=Kit(kit), patience=0.0, say=said.append, on_round=lambda reported: None)


@pytest.mark.parametrize("left", [None, "no json", {"study": 1, "run": 2}, {"study": "0" * 64, "run": RUN}])
def test_where_no_run_of_this_study_was_begun_none_is_resumed(left: Any, kit: Path, tmp_path: Path) -> None:
    if left is not None:
        (kit / LAST_RUN).write_text(left if isinstance(left, str) else json.dumps(left))
    with pytest.raises(ProtocolError, match=r"must (have a run to resume|be of this study), got"):
        runner_with(kit, []).run(tmp_path / "out", resume=True)


AT_WORK = {"run": RUN, "rounds": []}
TOO_FEW = {**AT_WORK, "done": False, "reason": "round 0 needs 3 answers", "again": True}
DONE = {**AT_WORK, "done": True, "reason": None}


class Scripted:
    """A coordinator whose states are written down beforehand; the last is repeated."""

    def __init__(self, *states: dict[str, Any] | None, connected: list[str] | None = None) -> None:
        self._states = list(states)
        self._connected = list(SIZES) if connected is None else connected
        self.started: list[str] = []
        self.fetched: list[str] = []

    def status(self) -> dict[str, Any]:
        if not self.started:
            return {"connected": self._connected, "run": None, "under_way": False}
        now = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        under_way = now is not None and "done" not in now
        return {"connected": self._connected, "run": now, "under_way": under_way}

    def start(self, run: str) -> None:
        self.started.append(run)

    def fetch(self, run: str, destination: Path) -> None:
        self.fetched.append(run)


@pytest.fixture
def follow(
    monkeypatch: pytest.MonkeyPatch, kit: Path, tmp_path: Path
) -> Callable[..., tuple[Any, list[str]]]:
    """Return what takes up a run at coordinators one after the other."""
    monkeypatch.setattr(running, "_POLL_S", 0.0)
    record = {"study": Kit(kit).study.digest, "run": RUN}
    (kit / LAST_RUN).write_text(json.dumps(record))

    def followed(*coordinators: Scripted) -> tuple[Any, list[str]]:
        left, said = list(coordinators), []

        @contextmanager
        def open_session(kit: Kit, *, patience: float) -> Iterator[Scripted]:
            yield left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(running, "open_session", open_session)
        return runner_with(kit, said).run(tmp_path, resume=True), said

    return followed


@pytest.mark.parametrize("lost", [None, {**AT_WORK, "run": "f" * 16}])
def test_a_coordinator_that_knows_nothing_of_the_run_resumes_it(
    lost: dict[str, Any] | None, follow: Callable[..., Any]
) -> None:
    """It was started again, and its checkpoint has the closed rounds."""
    first, second = Scripted(AT_WORK, lost), Scripted(AT_WORK, DONE)
    state, said = follow(first, second)
    assert state == DONE
    assert (first.started, second.started, second.fetched) == ([RUN], [RUN], [RUN])
    assert "the connection to the coordinator was lost; trying to find it again" in said


def test_a_run_in_which_nothing_happens_is_given_up_after_some_starts(follow: Callable[..., Any]) -> None:
    coordinator = Scripted(TOO_FEW)
    with pytest.raises(ProtocolError, match=r"needs 3 answers: no round was closed in 6 starts"):
        follow(coordinator)
    assert coordinator.started == [RUN] * 6
    hopeless = Scripted({**TOO_FEW, "again": False})
    with pytest.raises(ProtocolError, match=r"^round 0 needs 3 answers$"):
        follow(hopeless)
    assert hopeless.started == [RUN]
    few = Scripted(DONE, connected=["north"])
    sentence = r"^3 silos must be connected, got 1 after 0 s; start south, east and run again with --r"
    with pytest.raises(ProtocolError, match=sentence):
        follow(few)
    assert few.started == []


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

    def session(self) -> CoordinatorSession:
        made = object.__new__(CoordinatorSession)
        made._number, made._replies, made._links = 0, queue.Queue(), self
        self.into = made._replies
        return made


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_CONNECT_S", 0.01)


def test_a_reply_that_is_none_or_an_error_is_reported_in_a_sentence_that_steers_no_terminal() -> None:
    links = Answering(json.dumps({"error": "a run must\x1b[2J be named"}).encode() + b"\n")
    with pytest.raises(ProtocolError, match="a run must") as refused:
        links.session().start("x")
    assert "\x1b" not in str(refused.value)
    for reply in (b"", b"[1]\n", b"\xff\xfe\n"):
        with pytest.raises(ProtocolError, match="must answer as fedpower does, got something else"):
            Answering(reply).session().status()
    late = Answering(b'{"connected": []}\n', numbered=lambda number: number - 1)
    for links in (Answering(), late):
        with pytest.raises(CoordinatorLostError):
            links.session().status()


def test_a_result_is_fetched_piece_by_piece_and_whole(tmp_path: Path) -> None:
    links = Answering(b'{"files": {"a.csv": 7, "empty": 0}}\n', b'{"file": "a.csv"}\n\n\nabc', b"{}\nde")
    links.session().fetch(RUN, tmp_path)
    assert (tmp_path / "a.csv").read_bytes() == b"\n\nabcde"
    assert (tmp_path / "empty").read_bytes() == b""
    assert [call.get("offset") for call in links.calls] == [None, 0, 5]
    with pytest.raises(CoordinatorLostError):
        Answering(b'{"files": {"a.csv": 5}}\n', b"{}\nab", b"{}\n").session().fetch(RUN, tmp_path)


@pytest.mark.parametrize("name", ["../a.csv", "/etc/passwd", "..", ""])
def test_a_result_is_written_into_its_folder_and_nowhere_else(name: str, tmp_path: Path) -> None:
    place = tmp_path / "result"
    place.mkdir()
    listed = json.dumps({"files": {name: 1}}).encode() + b"\n"
    with pytest.raises(ProtocolError, match="must be plain files, got a path"):
        Answering(listed, b"{}\nx").session().fetch(RUN, place)
    assert list(tmp_path.rglob("*")) == [place]
