"""The coordinator as a process: it asks silos over FLARE's links, and does what the runner calls for."""

import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from fedpower.engines.pacing import Pace, paced
from fedpower.errors import FedpowerError, InputError, ProtocolError, RefusedError
from fedpower.federation.certificates import COORDINATOR, RUNNER, STUDY_FILE
from fedpower.federation.coordinator_node import CoordinatorNode
from fedpower.federation.links import ANSWER, ASK, CALL, REPLY, Links
from fedpower.federation.study_file import StudyFile, read_study
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.driving import Arrived, Unreadable, rounds
from fedpower.protocol.exchange import Round
from fedpower.protocol.messages import KeyGone, Message, Question, decode, encode
from fedpower.protocol.receiving import most_answer_bytes
from fedpower.protocol.study import Study

logger = logging.getLogger(__name__)

RESULT = "result"
PIECE_BYTES = 4 * 2**20
"""How much of a result's file is sent at a time."""

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_LOOK_S = 0.05
_RETURN_S = 5.0
"""How long a round waits for a silo that is not connected."""

_MOST_SENDINGS = 4
"""How often a question is sent to a silo that loses its connection again and again."""


class _StoppedError(Exception):
    """The run was told to stop."""


class Questions:
    """Carries the questions of one run to silos, and what comes back."""

    def __init__(
        self, links: Links, coordinator: Coordinator, study: Study, stopped: threading.Event
    ) -> None:
        self._links, self._coordinator, self._study = links, coordinator, study
        self._stopped = stopped
        self._lock = threading.Lock()
        self._number = 0
        self._open: dict[str, tuple[int, Message]] = {}
        self._sendings: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}
        self._arrived: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.waiting_for: tuple[str, ...] = ()
        self.gone: tuple[str, ...] = ()

    def send(self, question: Message) -> None:
        """Ask a silo, now or when it comes back."""
        with self._lock:
            self._number += 1
            self._open[question.silo] = (self._number, question)
            self._sendings[question.silo] = 0
        self._put(question.silo)

    def wait(self, seconds: float | None) -> Arrived | None:
        """Return what comes next; None when that time is over, or nobody is left who could answer."""
        over = None if seconds is None else time.monotonic() + seconds
        while True:
            if self._stopped.is_set():
                raise _StoppedError
            may_come = self._look()
            left = _LOOK_S if over is None else min(_LOOK_S, over - time.monotonic())
            try:
                return self._read(*self._arrived.get(timeout=max(0.0, left)))
            except queue.Empty:
                if not may_come or (over is not None and time.monotonic() >= over):
                    return None

    def leave(self) -> None:
        """Take no answer to what is open any more."""
        with self._lock:
            self._open.clear()
        while True:
            try:
                self._arrived.get_nowait()
            except queue.Empty:
                return

    def take(self, silo: str, number: int, content: bytes) -> None:
        """Take an answer, if it is the first to a question that is open."""
        with self._lock:
            expected, question = self._open.get(silo, (0, None))
            if question is None or number != expected:
                logger.info("a late or repeated answer of %s was dropped", silo)
                return
            del self._open[silo]
            most = most_answer_bytes(self._study, cast("Question", question.body))
            if len(content) > most:
                content = b""  # it is reported as no answer; its bytes are not kept
            self._arrived.put((silo, content))

    def change(self, silo: str, connected: bool) -> None:
        """Take note that a silo came or went; one that came back is asked again."""
        if connected:
            self._put(silo)

    def _put(self, silo: str) -> None:
        """Send an open question, unless its silo has had it too often already."""
        with self._lock:
            number, question = self._open.get(silo, (0, None))
            if question is None or self._sendings[silo] >= _MOST_SENDINGS:
                return
            self._sendings[silo] += 1
        if not self._links.send(silo, ASK, number, encode(question)):
            with self._lock:
                self._sendings[silo] -= 1

    def _look(self) -> bool:
        """Note who is waited for and who is gone; return whether one who was asked may still answer."""
        connected, now = set(self._links.connected()), time.monotonic()
        self.gone = tuple(name for name in self._coordinator.silos if name not in connected)
        with self._lock:
            self.waiting_for = tuple(self._open)
            for name in self._open:
                if name in connected:
                    self._missing_since.pop(name, None)
                else:
                    self._missing_since.setdefault(name, now)
            return any(now - self._missing_since.get(name, now) < _RETURN_S for name in self._open)

    def _read(self, silo: str, content: bytes) -> Arrived:
        if not content:
            return Unreadable(silo=silo, problem="an answer must hold a message, got none")
        try:
            answer = decode(content)
        except ProtocolError as error:
            return Unreadable(silo=silo, problem=str(error))
        if answer.silo != silo:  # the certificate says who it is
            return Unreadable(silo=silo, problem="an answer must be its silo's own, got another's")
        return answer


class Run:
    """One run of a study, in a thread of its own."""

    def __init__(self, service: "CoordinatorService", name: str) -> None:
        self._service = service
        self.name = name
        self.stopped = threading.Event()
        self.questions: Questions | None = None
        self._rounds: list[dict[str, Any]] = []
        self._seconds: dict[int, float] = {}
        self._ended: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._go, name="run", daemon=True)

    def start(self) -> None:
        """Begin, or go on where its checkpoint ends."""
        self._thread.start()

    def stop(self) -> None:
        """End the run where it is; what is known stays known."""
        self.stopped.set()
        self._thread.join()

    @property
    def under_way(self) -> bool:
        """Whether the run has not ended."""
        return self._thread.is_alive()

    @property
    def state(self) -> dict[str, Any]:
        """What the runner is told."""
        questions = self.questions
        return {
            "run": self.name,
            "rounds": self._rounds,
            "waiting_for": list(questions.waiting_for) if questions else [],
            "gone": list(questions.gone) if questions else [],
            "seconds": {str(number): spent for number, spent in self._seconds.items()},
            **self._ended,
        }

    def _go(self) -> None:
        node: CoordinatorNode | None = None
        reason, again, refused = None, True, False
        try:
            node = self._opened()
            self._drive(node)
            node.write_result(self._service.place(self.name) / RESULT)
        except FedpowerError as error:
            # Too few answers may be more another time; what is wrong before any round stays so.
            reason, again = str(error), isinstance(error, ProtocolError) and node is not None
            refused = isinstance(error, RefusedError)
            logger.error("%s", reason)
        except _StoppedError:
            reason = "the run was stopped"
        except Exception:
            logger.exception("the run failed")
            reason, again = "the coordinator failed; its log says why", False
        done = reason is None
        logger.info("run %s: %s", self.name, "done" if done else f"no result yet, {reason}")
        self._ended = {"done": done, "reason": reason, "again": again, "refused": refused}

    def _opened(self) -> CoordinatorNode:
        checkpoint = self._service.place(self.name) / "rounds.journal"
        made = CoordinatorNode(self._service.study, run=self.name, checkpoint=checkpoint, on_round=self._note)
        lost, known = made.checkpoint.n_lost, made.coordinator.n_replayed
        if lost:
            logger.warning("%s damaged bytes at the checkpoint's end were cut off", lost)
        if known:
            logger.info("run %s goes on after %s rounds", self.name, known)
        return made

    def _drive(self, node: CoordinatorNode) -> None:
        study = self._service.study
        pace = Pace(deadline=study.deadline, grace=study.grace, enough=study.min_silos)
        self.questions = self._service.questions(node, self.stopped)
        started = time.monotonic()
        for closed in rounds(node.coordinator, paced(self.questions, node.coordinator, pace)):
            self._seconds[closed.number] = time.monotonic() - started
            self._service.closed(closed)
            started = time.monotonic()

    def _note(self, closed: Round) -> None:
        row = closed.as_row()
        silent = [name for name in closed.asked if name not in closed.answers]
        restarted = [name for name, body in closed.answers.items() if isinstance(body, KeyGone)]
        self._rounds.append(
            {
                "round": closed.number,
                "kind": closed.kind,
                "step": closed.step,
                "answered": [name for name in closed.answers if name not in restarted],
                "restarted": restarted,
                "silent": silent,
                "refused": closed.refused,
                "set_aside": closed.set_aside,
                "bytes_up": closed.bytes_up,
                "change": row["change"] if row["change"] == row["change"] else None,
            }
        )


class CoordinatorService:
    """The coordinator of one study."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit.absolute()
        self.study: StudyFile = read_study(kit / STUDY_FILE)
        terms, _, _ = self.study.terms()
        self._since = time.time()
        self._run: Run | None = None
        self._calls: Mapping[str, Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]]] = {
            "status": self._status,
            "start": self._start,
            "fetch": self._fetch,
        }
        self.links = Links(
            COORDINATOR,
            accepts={**dict.fromkeys(self.study.silos, ANSWER), RUNNER: CALL},
            most_bytes=most_answer_bytes(terms),
            on_message=self._take,
            on_change=self._change,
        )

    def start(self) -> None:
        """Listen for silos and the runner."""
        self.links.listen(self.study.host, self.study.port, self.kit / "startup")

    def place(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.kit / "runs" / run

    def questions(self, node: CoordinatorNode, stopped: threading.Event) -> Questions:
        """Return what carries a run's questions."""
        return Questions(self.links, node.coordinator, node.study, stopped)

    def closed(self, closed: Round) -> None:
        """Take note of a round that is closed."""

    def _take(self, peer: str, kind: str, number: int, content: bytes) -> None:
        if kind == CALL:
            threading.Thread(
                target=self._answer_call, args=(number, content), name="call", daemon=True
            ).start()
        elif self._run is not None and self._run.questions is not None:
            self._run.questions.take(peer, number, content)

    def _change(self, peer: str, connected: bool) -> None:
        logger.info("%s %s", peer, "connected" if connected else "disconnected")
        if peer != RUNNER and self._run is not None and self._run.questions is not None:
            self._run.questions.change(peer, connected)

    def _answer_call(self, number: int, content: bytes) -> None:
        try:
            call = json.loads(content)
            reply, more = self._calls[call["do"]](call)
        except InputError as error:
            reply, more = {"error": str(error)}, b""
        except Exception:
            logger.exception("refused a call of the runner")
            reply, more = {"error": "the coordinator could not do this; its log says why"}, b""
        self.links.send(RUNNER, REPLY, number, json.dumps(reply).encode() + b"\n" + more)

    def _status(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        run = self._run
        connected = [name for name in self.links.connected() if name != RUNNER]
        found = {
            "since": self._since,
            "connected": connected,
            "run": None if run is None else run.state,
            "under_way": run is not None and run.under_way,
        }
        return found, b""

    def _start(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Begin or resume a run; one that is under way is ended first, unless it is the same."""
        name = _run_id(call.get("run"))
        run = self._run
        if run is not None and run.under_way:
            if run.name == name:
                return {"run": name}, b""
            run.stop()
        self._run = Run(self, name)
        self._run.start()
        return {"run": name}, b""

    def _fetch(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the names of a result's files, or a piece of one of them."""
        folder = self.place(_run_id(call.get("run"))) / RESULT
        if not folder.is_dir():
            raise InputError("a run must have a result, got one that has none yet; see it through")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        name = call.get("file")
        if name is None:
            return {"files": sizes}, b""
        if name not in sizes:
            raise InputError("a file must be one of the result's, got another; ask for their names")
        with (folder / name).open("rb") as file:
            file.seek(int(call["offset"]))
            return {"file": name}, file.read(PIECE_BYTES)


def _run_id(name: Any) -> str:
    if not isinstance(name, str) or not _RUN_ID.fullmatch(name):
        raise InputError(
            "a run must be named by 16 hexadecimal digits, got something else; let `fedpower run` name it"
        )
    return name
