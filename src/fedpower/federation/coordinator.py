"""The coordinator: a checkpoint after every round, questions to silos, and what the runner may call for."""

import logging
import math
import queue
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec

from fedpower.engines.inprocess import Pace, drive
from fedpower.estimator.terms import public_rng
from fedpower.exceptions import FedpowerError, InputError, ProtocolError, RefusedError
from fedpower.federation import MOST_BYTES
from fedpower.federation.health import Facts, certificate_days_left
from fedpower.federation.kits import Kit, private_folder, write_private
from fedpower.federation.links import ANSWER, ASK, CALL, REPLY, Links
from fedpower.federation.study_file import COORDINATOR, RUNNER, VIEWERS, StudyFile, proposed_study
from fedpower.protocol.coordinator import Arrived, Coordinator, Round, Unreadable
from fedpower.protocol.messages import (
    MOST_HEADER_BYTES,
    KeyGone,
    Message,
    Propose,
    Question,
    Standing,
    decode,
    decode_as,
    encode,
    encoded_size,
)
from fedpower.protocol.outcome import Outcome, conclude
from fedpower.protocol.receiving import cleaned, most_answer_bytes, most_question_bytes
from fedpower.protocol.solvers import start
from fedpower.protocol.study import Study
from fedpower.report.outcome import result_of
from fedpower.report.record import FederationRecord
from fedpower.report.result import Result
from fedpower.report.text import count, human_bytes, measured

logger = logging.getLogger(__name__)

_Reply = tuple[dict[str, Any], bytes]
RESULT = "result"
PIECE_BYTES = 2**19  # how much of a result's file is sent at a time; a slow line has seconds for it
_RUN_ID = re.compile(r"[0-9a-f]{16}")
_POLL_S = 0.05
_RETURN_S = 5.0  # how long a round waits for a silo that is not connected
_ASK_AGAIN_S = 1.0  # how often a silo is asked whether its operator has decided
_ABSENT = Standing(state="absent")
KEPT_RUNS = 20  # of the coordinator's folders of runs
_MOST_CALLS = 16  # at once
_MOST_SENDINGS = 4  # how often a question is sent to a silo that loses its connection again and again


def _stored_rounds(folder: Path) -> Iterator[Round]:
    """Yield a run's closed rounds, each from a file of its own, up to one that is missing or damaged."""
    number = 0
    try:
        while (path := folder / f"{number}.round").exists():
            yield decode_as(path.read_bytes(), Round)
            number += 1
    except ProtocolError:
        logger.warning("round %s of the checkpoint is damaged", number)


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
        self.study, self.settings, self.choice = study_file.terms()
        private_folder(checkpoint)
        self.coordinator = Coordinator(
            start(self.settings, public_rng(study_file.options), run),
            study_file.silos,
            study=self.study,
            run=run,
            min_silos=study_file.min_silos,
            on_round=on_round,
            # On disk before the next round is asked, in place of what was there
            on_closed=lambda closed: write_private(checkpoint / f"{closed.number}.round", encode(closed)),
            recorded=list(_stored_rounds(checkpoint)),
        )

    @property
    def outcome(self) -> Outcome:
        return conclude(self.coordinator, self.settings)

    @property
    def result(self) -> Result:
        """The result of the run, as an in-process fit gives it, with the federation on its record."""
        outcome = self.outcome
        agreed = f"the study file that all parties agreed on, hash {self.file.digest}"
        result = result_of(
            replace(outcome, privacy=replace(outcome.privacy, public=(agreed, *outcome.privacy.public))),
            options=self.file.options,
            treatment=self.file.treatment,
            feature_names=self.file.columns,
            solver=self.choice,
            rules=self.file.rules,
        )
        history, silos = self.coordinator.history, self.coordinator.silos
        missed = Counter(name for closed in history for name in closed.asked if name not in closed.answers)
        federation = FederationRecord(
            name=self.file.name,
            agreement=self.file.digest,
            run=self.coordinator.run,
            rounds_resumed=self.coordinator.n_replayed,
            silent={name: missed[name] for name in silos},
            set_aside={  # the first of each silo
                name: f"round {closed.number}: {problem}"
                for closed in reversed(history)
                for name, problem in closed.set_aside.items()
            },
        )
        return result.with_record(started=self.started.isoformat(), federation=federation)


class _StoppedError(Exception):
    """The run must stop."""


@dataclass(slots=True)
class _Sent:
    number: int
    question: Message
    times: int = 0


class Questions:
    """Carries the questions of one run to silos, and what comes back."""

    def __init__(self, links: Links, study: Study, stopped: threading.Event) -> None:
        self._links, self._study, self._stopped = links, study, stopped
        self._lock = threading.RLock()
        self._number = 0
        self._open: dict[str, _Sent] = {}
        self._missing_since: dict[str, float] = {}
        self._arrived: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._began, self._ends = time.monotonic(), math.inf  # the round

    @property
    def waiting_for(self) -> list[str]:
        return list(self._open)

    @property
    def times(self) -> dict[str, float]:
        """How long the round is open, and how long it may still take; clocks of parties need not agree."""
        now = time.monotonic()
        return {"seconds_open": now - self._began, "seconds_left": max(0.0, self._ends - now)}

    def send(self, question: Message) -> None:
        with self._lock:
            self._number += 1
            self._open[question.silo] = _Sent(self._number, question)
        self.resend(question.silo)

    def resend(self, silo: str) -> None:
        with self._lock:
            sent = self._open.get(silo)
            if sent is not None and sent.times < _MOST_SENDINGS:
                sent.times += self._links.send(silo, ASK, sent.number, encode(sent.question))

    def wait(self, seconds: float | None) -> Arrived | None:
        """Return what arrives next; None when the time is over, or no silo is left that could answer."""
        self._ends = over = math.inf if seconds is None else time.monotonic() + seconds
        while not self._stopped.is_set():
            may_come = self._can_answer()
            left = min(_POLL_S, over - time.monotonic())
            try:
                return self._read(*self._arrived.get(timeout=max(0.0, left)))
            except queue.Empty:
                if not may_come or time.monotonic() >= over:
                    return None
        raise _StoppedError

    def leave(self) -> None:
        """Forget the questions of a round; the next one begins."""
        with self._lock:
            self._open.clear()
            self._arrived = queue.Queue()
            self._began, self._ends = time.monotonic(), math.inf

    def take(self, silo: str, number: int, content: bytes) -> None:
        with self._lock:
            sent = self._open.get(silo)
            if sent is None or number != sent.number:
                logger.info("a late or repeated answer of %s was dropped", silo)
                return
            del self._open[silo]
            most = most_answer_bytes(self._study, cast("Question", sent.question.body))
            # A longer one is reported as no answer, and its bytes are not kept.
            self._arrived.put((silo, content if len(content) <= most else b""))

    def _can_answer(self) -> bool:
        """Return whether a silo that was asked may still answer; record who is missing."""
        connected, now = set(self._links.connected()), time.monotonic()
        with self._lock:
            for name in self._open:
                if name in connected:
                    self._missing_since.pop(name, None)
                else:
                    self._missing_since.setdefault(name, now)
            return any(now - self._missing_since.get(name, now) < _RETURN_S for name in self._open)

    def _read(self, silo: str, content: bytes) -> Arrived:
        problem = "an answer must hold a message, got none"
        try:
            answer = decode(content) if content else None
            if answer is not None and answer.silo == silo:  # the certificate says who it is
                return answer
            problem = "an answer must come from the silo that it names, got another" if answer else problem
        except ProtocolError as error:
            problem = str(error)
        return Unreadable(silo=silo, problem=problem)


class RunThread(threading.Thread):
    """Runs a study, from the beginning or from where its checkpoint ends, and reports how far it is."""

    def __init__(
        self, study: StudyFile, folder: Path, links: Links, *, signatures: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name=folder.name, daemon=True)
        self.study, self.folder = study, folder
        self.stopped, self.go_on, self.ask_again = (threading.Event() for _ in range(3))
        self._links = links
        self.questions = Questions(links, study.terms()[0], self.stopped)
        self._proposal = Propose(content=study.content, signatures=dict(signatures or {}))
        self._standings = dict.fromkeys(study.silos, _ABSENT)
        self._approved = False
        self._rounds: list[dict[str, Any]] = []
        self._history: list[Round] = []  # the coordinator's
        self._end: dict[str, Any] = {}

    def stop(self) -> None:
        self.stopped.set()
        self.join()

    @property
    def state(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "study": self.study.digest,
            "name": self.study.name,
            "approved": self._approved,
            "standings": {name: msgspec.to_builtins(one) for name, one in self._standings.items()},
            "rounds": self._rounds,
            "open": self._open_round(),
            "waiting_for": self.questions.waiting_for if self._approved else [],
            **self._end,
        }

    def run(self) -> None:
        reason, again = None, False
        try:
            made = self._open()
            again = True  # what is wrong before any round stays so; too few answers may be more later
            self._await_approval()
            self._drive(made)
            made.result.save(self.folder / RESULT, force=True)
        except RefusedError as error:
            reason, again = f"{error}; {self._after_refusal()}" if self._approved else str(error), False
        except FedpowerError as error:
            reason, again = str(error), again and isinstance(error, ProtocolError)
        except _StoppedError:
            reason = "the run was stopped"
        except Exception:
            logger.exception("the run failed")
            reason, again = "the coordinator failed; see its log", False
        level, end = (logging.INFO, "done") if reason is None else (logging.ERROR, f"no result yet, {reason}")
        logger.log(level, "run %s: %s", self.name, end)
        self._end = {"done": reason is None, "reason": reason, "again": again}

    def _open(self) -> StudyRun:
        made = StudyRun(self.study, run=self.name, checkpoint=self.folder / "rounds", on_round=self._record)
        logger.info("run %s is of study %s (%s)", self.name, self.study.name, self.study.digest[:12])
        if known := made.coordinator.n_replayed:
            logger.info("run %s continues after %s rounds", self.name, known)
        self._history = made.coordinator.history
        return made

    def _open_round(self) -> dict[str, Any] | None:
        """Return how far the round is that silos are asked in, if any is open."""
        if not self._approved or self._end or len(self._history) == len(self._rounds):
            return None
        current = self._history[-1]
        return {
            "round": current.number,
            "kind": current.kind,
            "answered": list(current.answers),
            "refused": dict(current.refused),
            **self.questions.times,  # infinity becomes null on its way
        }

    def _await_approval(self) -> None:
        """Propose the study until all silos have decided, or enough have and the runner goes on."""
        terms, due, asked_at = self.study.terms()[0], dict[str, float](), dict[str, float]()
        while True:
            connected, now = self._links.connected(), time.monotonic()
            if self.ask_again.is_set():
                self.ask_again.clear()
                for name in (name for name, one in self._standings.items() if one.state == "unable"):
                    self._standings[name] = _ABSENT
            for name, standing in self._standings.items():
                if standing.state in ("approved", "unable"):
                    continue
                if name not in connected:
                    self._standings[name] = standing if standing.state == "refused" else _ABSENT
                elif standing.state == "asked" and now - asked_at[name] > self._longest():
                    unable = f"no answer in {self._longest():g} s; if rows take longer to read, use --resume"
                    self._standings[name] = Standing(state="unable", reason=unable)
                elif standing.state == "absent" or (standing.state != "asked" and now > due[name]):
                    if standing.state == "absent":
                        self._standings[name] = Standing(state="asked")
                    asked_at[name] = now
                    due[name] = math.inf  # until it answers
                    self.questions.send(
                        Message(study=terms.digest, run=self.name, round=0, silo=name, body=self._proposal)
                    )
            if self._is_decided():
                break
            arrived = self.questions.wait(_ASK_AGAIN_S)
            if arrived is None:
                time.sleep(_POLL_S)
                continue
            said = arrived.body if isinstance(arrived, Message) else None
            if not isinstance(said, Standing) or said.state in ("absent", "asked"):
                said = Standing(state="unable", reason="its answer was not one to a proposal")
            self._standings[arrived.silo] = Standing(state=said.state, reason=cleaned(said.reason))
            due[arrived.silo] = time.monotonic() + _ASK_AGAIN_S
        self.questions.leave()
        self._approved = True

    def _longest(self) -> float:
        """Return how many seconds a silo may take to answer: to read its rows, where it approves."""
        grace = self.study.grace if self.go_on.is_set() else None
        return self.study.deadline if grace is None else grace

    def _is_decided(self) -> bool:
        """Return whether rounds may begin; refuse once too few silos can approve."""
        states: list[str] = [one.state for one in self._standings.values()]
        open_ones = ("asked",) if self.go_on.is_set() else ("asked", "waiting", "absent")
        n_open = sum(states.count(state) for state in open_ones)
        if states.count("approved") + n_open < self.study.min_silos:
            against = [
                f"{name}: {one.state}{one.reason and f', {one.reason}'}"
                for name, one in self._standings.items()
                if one.state not in ("approved", *open_ones)
            ]
            raise RefusedError(
                f"{count(self.study.min_silos, 'silo')} must approve the study, got {'; '.join(against)}"
            )
        return not n_open

    def _drive(self, made: StudyRun) -> None:
        pace = Pace(deadline=made.file.deadline, grace=made.file.grace, enough=made.file.min_silos)
        drive(made.coordinator, self.questions, pace)

    def _after_refusal(self) -> str:
        """Return what helps; starting the same run again would be refused again."""
        silent = {name for closed in self._rounds for name in closed["silent"]}
        if missing := ", ".join(name for name in self.study.silos if name in silent):
            # Questions follow from earlier answers: without a silo they are others, and not free.
            why = f"without {missing}, the questions of this run differ from those of a complete run"
            return f"{why}: reconnect all silos and run again without --resume; nothing is charged twice"
        return "releases stay recorded: fix the problem and run again with --resume"

    def _record(self, closed: Round) -> None:
        restarted = [name for name, body in closed.answers.items() if isinstance(body, KeyGone)]
        answered = f"{len(closed.answers) - len(restarted)} of {len(closed.asked)}"
        if self._history:  # else it is a round from before a restart
            kind = measured(closed.kind)
            logger.info("run %s: round %s (%s), %s answered", self.name, closed.number, kind, answered)
            for name in closed.answers:
                self._standings[name] = Standing(state="approved")
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
                "change": closed.notes.get("change"),  # nan becomes null on its way
            }
        )


class CoordinatorService:
    """The coordinator of a federation: it runs one study at a time."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self.federation = kit, kit.federation
        self._run: RunThread | None = None
        self._starting = threading.Lock()
        self._calls_at_once = threading.BoundedSemaphore(_MOST_CALLS)
        self._calls = {
            "status": self._status,
            "start": self._start,
            "go on": self._go_on,
            "fetch": self._fetch,
        }
        self.links = Links(
            COORDINATOR,
            accepts={
                **dict.fromkeys(self.federation.silos, ANSWER),
                **dict.fromkeys((RUNNER, *VIEWERS), CALL),
            },
            most_bytes=MOST_BYTES,
            on_message=self._take,
            on_change=self._change,
        )

    def start(self) -> None:
        self.links.listen(self.federation.host, self.federation.port, self.kit.tls)

    def facts(self) -> Facts:
        """Return what health and metrics show."""
        silos, run, connected = self.federation.silos, self._run, self.links.connected()
        rounds = [] if run is None else run.state["rounds"]
        waits = run is not None and run.is_alive() and not run.state["approved"]
        return Facts(
            party=COORDINATOR,
            connected={name: name in connected for name in silos},
            last_contact_timestamp_seconds={
                name: moment for name, moment in self.links.last_contact().items() if name in silos
            },
            certificate_days_left=certificate_days_left(self.kit.tls),
            round=rounds[-1]["round"] if rounds else None,
            studies_waiting=int(waits),
        )

    def _take(self, peer: str, kind: str, number: int, content: bytes) -> None:
        if kind == CALL:
            if len(content) > MOST_HEADER_BYTES or not self._calls_at_once.acquire(blocking=False):
                logger.warning("refused a call of %s: too long, or too many at once", peer)
                return
            threading.Thread(target=self._answer_one, args=(peer, number, content), daemon=True).start()
        elif self._run is not None:
            self._run.questions.take(peer, number, content)

    def _change(self, peer: str, connected: bool) -> None:
        if peer not in VIEWERS:
            logger.info("%s %s", peer, "connected" if connected else "disconnected")
        if connected and self._run is not None:
            self._run.questions.resend(peer)

    def _answer_one(self, *call: Any) -> None:
        try:
            self._answer_call(*call)
        finally:
            self._calls_at_once.release()

    def _answer_call(self, peer: str, number: int, content: bytes) -> None:
        more = b""
        try:
            call = msgspec.msgpack.decode(content)
            reply, more = self._calls[call["do"]](call)
        except InputError as error:
            reply = {"error": str(error)}
        except Exception:
            logger.exception("refused a call of the runner")
            reply = {"error": "the coordinator could not do this; see its log"}
        self.links.send(peer, REPLY, number, msgspec.json.encode(reply) + b"\n" + more)

    def _status(self, call: dict[str, Any]) -> _Reply:
        """Return who is connected, the state of the last run, and whether a named run has a result."""
        run, named = self._run, call.get("run")
        return {
            "connected": [name for name in self.links.connected() if name in self.federation.silos],
            "run": None if run is None else run.state,
            "under_way": run is not None and run.is_alive(),
            "result": named is not None and self._result_of(named).is_dir(),
        }, b""

    def _start(self, call: dict[str, Any]) -> _Reply:
        """Begin or resume a run; one that is under way is ended first, unless it is the same."""
        name = _run_id(call.get("run"))
        with self._starting:
            run = self._run
            if run is not None and run.is_alive() and run.name == name:
                run.ask_again.set()  # also those who were not able to
            else:
                folder = self.kit.folder / "runs" / name
                study, signatures = self._proposed(folder, call)
                started = RunThread(study, folder, self.links, signatures=signatures)
                if run is not None:
                    run.stop()
                self._forget_runs()
                self._run = started
                started.start()
        return {"run": name}, b""

    def _proposed(self, folder: Path, call: dict[str, Any]) -> tuple[StudyFile, dict[str, str]]:
        """Return the study of a run and its signatures, from its folder or as they arrived."""
        path = folder / "study"
        given = {name: call[name] for name in ("content", "signatures") if name in call}
        proposal = msgspec.convert(given, Propose)
        if path.exists():  # others may have signed it since
            return proposed_study(decode_as(path.read_bytes(), Propose).content), proposal.signatures
        study = proposed_study(proposal.content)
        self.federation.check(study)
        terms = study.terms()[0]
        largest = max(most_answer_bytes(terms), most_question_bytes(terms))
        for what, size, most in (
            ("the study", encoded_size(proposal), MOST_HEADER_BYTES // 2),
            ("messages of the study", largest, MOST_BYTES),
        ):
            if size > most:
                must = f"{what} must have at most {human_bytes(most)}"
                raise InputError(f"{must}, got {human_bytes(size)}; use fewer columns or another solver")
        private_folder(folder)
        write_private(path, encode(proposal))
        return study, proposal.signatures

    def _forget_runs(self) -> None:
        """Remove the folders of all but the last runs."""
        folders = sorted((self.kit.folder / "runs").iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in folders[:-KEPT_RUNS]:
            shutil.rmtree(folder, ignore_errors=True)

    def _go_on(self, call: dict[str, Any]) -> _Reply:
        """Go on without the silos that have not decided."""
        if self._run is not None and self._run.name == call.get("run"):
            self._run.go_on.set()
        return {}, b""

    def _fetch(self, call: dict[str, Any]) -> _Reply:
        """Return the names of a result's files, or a piece of one of them."""
        folder = self._result_of(call.get("run"))
        if not folder.is_dir():
            raise InputError("a run must have a result, got one without a result so far")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        name = call.get("file")
        if name is None:
            return {"files": sizes}, b""
        if name not in sizes:
            raise InputError("a file must be one of the result's, got another")
        with (folder / name).open("rb") as file:
            file.seek(int(call["offset"]))
            return {"file": name}, file.read(PIECE_BYTES)

    def _result_of(self, run: Any) -> Path:
        return self.kit.folder / "runs" / _run_id(run) / RESULT


def _run_id(name: Any) -> str:
    if not isinstance(name, str) or not _RUN_ID.fullmatch(name):
        raise InputError("the name of a run must be 16 hexadecimal digits, got something else")
    return name
