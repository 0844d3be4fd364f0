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


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    folder = tmp_path_factory.mktemp("runner")
    return kit_of(write_study(folder), "runner", folder / "runner")


AT_WORK = {"run": RUN, "rounds": []}
TOO_FEW = {**AT_WORK, "done": False, "reason": "round 0 needs 3 answers", "again": True}
DONE = {**AT_WORK, "done": True, "reason": None}


class Scripted:
    """A coordinator whose states are written down beforehand; the last is repeated."""

    def __init__(self, *states: dict[str, Any] | None, connected: tuple[str, ...] = tuple(SIZES)) -> None:
        self._states, self._connected = list(states), connected
        self.started: list[str] = []
        self.fetched: list[str] = []

    def status(self) -> dict[str, Any]:
        now = None
        if self.started:
            now = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        under_way = now is not None and "done" not in now
        return {"connected": self._connected, "run": now, "under_way": under_way}

    def start(self, run: str) -> None:
        self.started.append(run)

    def fetch(self, run: str, destination: Path) -> None:
        self.fetched.append(run)


Follow = Callable[..., tuple[Any, list[str]]]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, kit: Kit, tmp_path: Path) -> Follow:
    """Return what takes up a run at coordinators one after the other."""
    monkeypatch.setattr(running, "_POLL_S", 0.0)
    monkeypatch.setattr(running, "_CONNECT_S", 0.01)
    (kit.folder / LAST_RUN).write_text(json.dumps({"study": kit.study.digest, "run": RUN}))

    def followed(*coordinators: Scripted) -> tuple[Any, list[str]]:
        left, said = list(coordinators), list[str]()

        @contextmanager
        def open_session(kit: Kit, *, patience: float) -> Iterator[Scripted]:
            yield left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(running, "open_session", open_session)
        runner = Runner(kit=kit, patience=0.0, say=said.append, on_round=lambda reported: None)
        return runner.run(tmp_path, resume=True), said

    return followed


@pytest.mark.parametrize("left", ["no json", {"study": 1, "run": 2}, {"study": "0" * 64, "run": RUN}])
def test_where_no_run_of_this_study_was_begun_none_is_resumed(left: Any, kit: Kit, follow: Follow) -> None:
    (kit.folder / LAST_RUN).write_text(left if isinstance(left, str) else json.dumps(left))
    with pytest.raises(ProtocolError, match=r"must (have a run to resume|be of this study), got"):
        follow(Scripted())


@pytest.mark.parametrize("lost", [None, {**AT_WORK, "run": "f" * 16}])
def test_a_coordinator_that_knows_nothing_of_the_run_resumes_it(lost: Any, follow: Follow) -> None:
    """It was started again, and its checkpoint has the closed rounds."""
    first, second = Scripted(AT_WORK, lost), Scripted(AT_WORK, DONE)
    state, said = follow(first, second)
    assert state == DONE
    assert (first.started, second.started, second.fetched) == ([RUN], [RUN], [RUN])
    assert "the connection to the coordinator was lost; trying to find it again" in said


@pytest.mark.parametrize(
    ("coordinator", "sentence", "starts"),
    [
        (Scripted(TOO_FEW), r"needs 3 answers: no round was closed in 6 starts", 6),
        (Scripted({**TOO_FEW, "again": False}), r"^round 0 needs 3 answers$", 1),
        (
            Scripted(DONE, connected=("north",)),
            r"^3 silos must be connected, got 1 after 0 s; start south, east and run again with --r",
            0,
        ),
    ],
)
def test_a_run_in_which_nothing_happens_is_given_up_after_some_starts(
    coordinator: Scripted, sentence: str, starts: int, follow: Follow
) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        follow(coordinator)
    assert coordinator.started == [RUN] * starts


class Answering:
    """Links to a coordinator that answers calls with bytes written down beforehand."""

    def __init__(self, *replies: bytes, late: int = 0):
        self._replies, self._late = list(replies), late
        self.calls: list[dict[str, Any]] = []

    def send(self, peer: str, kind: str, number: int, content: bytes) -> bool:
        self.calls.append(json.loads(content))
        if self._replies:
            self.into.put((number - self._late, self._replies.pop(0)))
        return True

    def session(self) -> CoordinatorSession:
        made = object.__new__(CoordinatorSession)
        made._number, made._replies, made._links = 0, queue.Queue(), self
        self.into = made._replies
        return made


def test_a_reply_that_is_none_or_an_error_is_reported_in_a_sentence_that_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "_CONNECT_S", 0.01)
    links = Answering(json.dumps({"error": "a run must\x1b[2J be named"}).encode() + b"\n")
    with pytest.raises(ProtocolError, match="a run must") as refused:
        links.session().start("x")
    assert "\x1b" not in str(refused.value)
    for reply in (b"", b"[1]\n", b"\xff\xfe\n"):
        with pytest.raises(ProtocolError, match="must answer as fedpower does, got something else"):
            Answering(reply).session().status()
    for links in (Answering(), Answering(b'{"connected": []}\n', late=1)):
        with pytest.raises(CoordinatorLostError):
            links.session().status()


def test_a_result_is_fetched_piece_by_piece_into_its_folder_and_nowhere_else(tmp_path: Path) -> None:
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
    assert list(tmp_path.iterdir()) == [place]
