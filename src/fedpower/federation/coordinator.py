"""The coordinator: a checkpoint after every round, questions to silos, and what the runner may call for."""

import logging
import math
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import structs

from fedpower.engines.inprocess import Pace, paced
from fedpower.errors import FedpowerError, InputError, ProtocolError, RefusedError
from fedpower.estimator.terms import public_rng
from fedpower.federation.files import private_folder, write_private
from fedpower.federation.kits import COORDINATOR, RUNNER, Kit
from fedpower.federation.links import ANSWER, ASK, CALL, REPLY, Links
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.coordinator import Arrived, Coordinator, Recorded, Round, Unreadable, rounds
from fedpower.protocol.messages import KeyGone, Message, Question, decode, decode_as, encode
from fedpower.protocol.outcome import Outcome, conclude, with_noise
from fedpower.protocol.receiving import most_answer_bytes
from fedpower.protocol.solvers import start
from fedpower.protocol.study import Study
from fedpower.report.outcome import result_of
from fedpower.report.record import FederationRecord
from fedpower.report.result import Result

logger = logging.getLogger(__name__)

RESULT = "result"
PIECE_BYTES = 4 * 2**20  # how much of a result's file is sent at a time
_RUN_ID = re.compile(r"[0-9a-f]{16}")
_POLL_S = 0.05
_RETURN_S = 5.0  # how long a round waits for a silo that is not connected
_MOST_SENDINGS = 4  # how often a question is sent to a silo that loses its connection again and again


class Checkpoint:
    """The closed rounds of a run: a file for each, on disk before the next is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)
        self.rounds: list[Recorded] = []
        while (path := self._path(len(self.rounds))).exists():
            try:
                self.rounds.append(decode_as(path.read_bytes(), Recorded))
            except ProtocolError:
                logger.warning("round %s of the checkpoint is damaged", len(self.rounds))
                break

    def append(self, closed: Recorded) -> None:
        """Put a closed round on disk, in place of what was there."""
        write_private(self._path(closed.number), encode(closed))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.round"


class StudyRun:
    """One run of a study."""

    def __init__(
        self,
        study_file: StudyFile,
        *,
        run: str,
        checkpoint: Path,
        on_round: Callable[[Round], None] | None = None,
    ) -> None:
        self.file = study_file
        self.started = datetime.now(UTC)
        self.study, settings, self.choice = study_file.terms()
        self.settings = with_noise(settings, self.study, run=run)
        stored = Checkpoint(checkpoint)
        self.coordinator = Coordinator(
            start(self.settings, public_rng(study_file.options), self.study),
            study_file.silos,
            study=self.study,
            run=run,
            min_silos=study_file.min_silos,
            on_round=on_round,
            on_closed=stored.append,
            recorded=stored.rounds,
        )

    @property
    def outcome(self) -> Outcome:
        return conclude(self.coordinator, self.study, self.settings)

    @property
    def result(self) -> Result:
        """The result of the run, as an in-process fit gives it, with the federation on its record."""
        outcome = self.outcome
        treatment, book = self.file.treatment, outcome.solution.code_book
        if treatment is None:
            assert book is not None, "a run without a treatment estimates one"
            treatment = book.treatment
        agreed = f"the study file that all parties agreed on, hash {self.file.digest}"
        result = result_of(
            replace(outcome, privacy=replace(outcome.privacy, public=(agreed, *outcome.privacy.public))),
            options=self.file.options,
            treatment=treatment,
            feature_names=self.file.columns,
            solver=self.choice,
            rules=self.file.rules,
            code_book=book,
        ).with_origin(started=self.started)
        history, silos = self.coordinator.history, self.coordinator.silos
        missed = Counter(name for closed in history for name in closed.asked if name not in closed.answers)
        problems = {  # the first of each silo
            name: f"round {closed.number}: {problem}"
            for closed in reversed(history)
            for name, problem in closed.set_aside.items()
        }
        federation = FederationRecord(
            name=self.file.name,
            agreement=self.file.digest,
            run=self.coordinator.run,
            rounds_resumed=self.coordinator.n_replayed,
            silent={name: missed[name] for name in silos},
            set_aside=problems,
        )
        return result.with_record(structs.replace(result.record, federation=federation))

    def write_result(self, folder: Path) -> dict[str, Any]:
        """Write the result folder, the same as ``fedpower fit`` writes, and return its record."""
        result = self.result
        folder.mkdir(parents=True, exist_ok=True)
        result.write_into(folder)
        return result.run


class _StoppedError(Exception):
    """The run must stop."""


class Questions:
    """Carries the questions of one run to silos, and what comes back."""

    def __init__(self, links: Links, study: Study, stopped: threading.Event) -> None:
        self._links, self._study, self._stopped = links, study, stopped
        self._lock = threading.Lock()
        self._number = 0
        self._open: dict[str, tuple[int, Message]] = {}
        self._sendings: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}
        self._arrived: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.waiting_for: tuple[str, ...] = ()

    def send(self, question: Message) -> None:
        """Ask a silo, now or when it comes back."""
        with self._lock:
            self._number += 1
            self._open[question.silo] = (self._number, question)
            self._sendings[question.silo] = 0
        self._put(question.silo)

    def wait(self, seconds: float | None) -> Arrived | None:
        """Return what arrives next; None when the time is over, or no silo is left that could answer."""
        over = None if seconds is None else time.monotonic() + seconds
        while True:
            if self._stopped.is_set():
                raise _StoppedError
            may_come = self._can_answer()
            left = _POLL_S if over is None else min(_POLL_S, over - time.monotonic())
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
        """Ask a silo that came back again."""
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

    def _can_answer(self) -> bool:
        """Return whether a silo that was asked may still answer; record who is missing."""
        connected, now = set(self._links.connected()), time.monotonic()
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


class RunThread:
    """Runs a study in a thread, and reports how far it is."""

    def __init__(self, service: "CoordinatorService", name: str) -> None:
        self._service = service
        self.name = name
        self.stopped = threading.Event()
        self.questions: Questions | None = None
        self._rounds: list[dict[str, Any]] = []
        self._ended: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._go, name="run", daemon=True)

    def start(self) -> None:
        """Begin, or continue where its checkpoint ends."""
        self._thread.start()

    def stop(self) -> None:
        """End the run where it is; what is known stays known."""
        self.stopped.set()
        self._thread.join()

    @property
    def under_way(self) -> bool:
        return self._thread.is_alive()

    @property
    def state(self) -> dict[str, Any]:
        """What the runner sees."""
        questions = self.questions
        return {
            "run": self.name,
            "rounds": self._rounds,
            "waiting_for": list(questions.waiting_for) if questions else [],
            **self._ended,
        }

    def _go(self) -> None:
        run: StudyRun | None = None
        reason, again, refused = None, True, False
        try:
            run = self._open()
            self._drive(run)
            run.write_result(self._service.place(self.name) / RESULT)
        except FedpowerError as error:
            # Too few answers may be more another time; what is wrong before any round stays so.
            reason, again = str(error), isinstance(error, ProtocolError) and run is not None
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

    def _open(self) -> StudyRun:
        checkpoint = self._service.place(self.name) / "rounds"
        run = StudyRun(self._service.study, run=self.name, checkpoint=checkpoint, on_round=self._record)
        if known := run.coordinator.n_replayed:
            logger.info("run %s continues after %s rounds", self.name, known)
        return run

    def _drive(self, run: StudyRun) -> None:
        study = self._service.study
        pace = Pace(deadline=study.deadline, grace=study.grace, enough=study.min_silos)
        self.questions = self._service.questions(run, self.stopped)
        for closed in rounds(run.coordinator, paced(self.questions, run.coordinator, pace)):
            self._service.closed(closed)

    def _record(self, closed: Round) -> None:
        change = closed.notes.get("change", math.nan)
        restarted = [name for name, body in closed.answers.items() if isinstance(body, KeyGone)]
        self._rounds.append(
            {
                "round": closed.number,
                "kind": closed.kind,
                "answered": [name for name in closed.answers if name not in restarted],
                "restarted": restarted,
                "silent": [name for name in closed.asked if name not in closed.answers],
                "refused": closed.refused,
                "set_aside": closed.set_aside,
                "bytes_up": closed.bytes_up,
                "change": None if math.isnan(change) else change,
            }
        )


class CoordinatorService:
    """The coordinator of one study."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self.study = kit, kit.study
        terms, _, _ = self.study.terms()
        self._run: RunThread | None = None
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
        self.links.listen(self.study.host, self.study.port, self.kit.tls)

    def place(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.kit.folder / "runs" / run

    def questions(self, run: StudyRun, stopped: threading.Event) -> Questions:
        """Return what carries a run's questions."""
        return Questions(self.links, run.study, stopped)

    def closed(self, closed: Round) -> None:
        """Do nothing; tests wait here after a closed round."""

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
            call = msgspec.json.decode(content)
            reply, more = self._calls[call["do"]](call)
        except InputError as error:
            reply, more = {"error": str(error)}, b""
        except Exception:
            logger.exception("refused a call of the runner")
            reply, more = {"error": "the coordinator could not do this; its log says why"}, b""
        self.links.send(RUNNER, REPLY, number, msgspec.json.encode(reply) + b"\n" + more)

    def _status(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        run = self._run
        return {
            "connected": [name for name in self.links.connected() if name != RUNNER],
            "run": None if run is None else run.state,
            "under_way": run is not None and run.under_way,
        }, b""

    def _start(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Begin or resume a run; one that is under way is ended first, unless it is the same."""
        name = _run_id(call.get("run"))
        run = self._run
        if run is not None and run.under_way:
            if run.name == name:
                return {"run": name}, b""
            run.stop()
        self._run = RunThread(self, name)
        self._run.start()
        return {"run": name}, b""

    def _fetch(self, call: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the names of a result's files, or a piece of one of them."""
        folder = self.place(_run_id(call.get("run"))) / RESULT
        if not folder.is_dir():
            raise InputError("a run must have a result, got one that has none yet")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        name = call.get("file")
        if name is None:
            return {"files": sizes}, b""
        if name not in sizes:
            raise InputError("a file must be one of the result's, got another")
        with (folder / name).open("rb") as file:
            file.seek(int(call["offset"]))
            return {"file": name}, file.read(PIECE_BYTES)


def _run_id(name: Any) -> str:
    if not isinstance(name, str) or not _RUN_ID.fullmatch(name):
        raise InputError("a run must be named by 16 hexadecimal digits, got something else")
    return name
