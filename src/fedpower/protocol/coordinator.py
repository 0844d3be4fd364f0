"""The coordinator: drives a solver, one round at a time, over an unreliable network."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from fedpower.exceptions import ProtocolError, RefusedError, is_showable
from fedpower.protocol.messages import (
    Answer,
    AskSteps,
    Message,
    Question,
    Refusal,
    SessionKey,
    digest_of,
    encoded_size,
)
from fedpower.protocol.receiving import cleaned, problem_with
from fedpower.protocol.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question a solver puts to silos."""

    body: Question
    silos: tuple[str, ...] | None = None
    enough: int | None = None
    step: int = 0


if TYPE_CHECKING:
    _Answer = Any  # a solver knows which kind it asked for
else:
    _Answer = Answer


class Round(Struct, kw_only=True, forbid_unknown_fields=True):
    """The record of one exchange; stored once it is closed, so that a run can continue after it."""

    study: str = ""
    run: str = ""
    number: int
    kind: str
    step: int
    asked: tuple[str, ...]
    question: str = ""
    local_steps: int = 1
    answers: dict[str, _Answer] = {}
    refused: dict[str, str] = {}
    set_aside: dict[str, str] = {}
    bytes_down: int = 0
    bytes_up: int = 0
    notes: dict[str, float] = {}

    def awaits(self, silo: str) -> bool:
        return silo in self.asked and silo not in self.answers and silo not in self.refused

    def as_row(self) -> dict[str, Any]:
        return {
            "round": self.number,
            "kind": self.kind,
            "step": self.step,
            "local_steps": self.local_steps,
            "participants": tuple(self.answers),
            "n_participants": len(self.answers),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "change": self.notes.get("change", float("nan")),
            "misalignment": self.notes.get("misalignment", float("nan")),
        }


Exchange = Generator[Ask, Round, Any]
"""A solver or a part of one: yields questions, is sent closed rounds, returns its outcome."""

logger = logging.getLogger(__name__)


class Unreadable(NamedTuple):
    """What came from a silo and is no message, and why."""

    silo: str
    problem: str


Arrived = Message | Unreadable


class _Open(NamedTuple):
    """The round that is open, its question without a silo's name, and how many answers close it."""

    round: Round
    question: Message
    enough: int


class Coordinator:
    """Runs ``solver`` over ``silos`` and holds the record of its rounds."""

    def __init__(
        self,
        solver: Generator[Ask, Round, Any],
        silos: Sequence[str],
        *,
        study: Study,
        run: str,
        min_silos: int | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_closed: Callable[[Round], None] | None = None,
        recorded: Sequence[Round] = (),
    ) -> None:
        check_silos(silos, min_silos)
        self.silos = tuple(silos)
        self.min_silos = len(self.silos) if min_silos is None else min_silos
        self.history: list[Round] = []
        self.outcome: Any = None
        self.done = False
        self._solver = solver
        self._study = study
        self.run = run
        self._on_round = on_round
        self._on_closed = on_closed
        self._recorded = deque(recorded)
        self.n_replayed = 0
        self._open: _Open | None = None
        self._advance(None)

    def next(self) -> tuple[Message, ...]:
        if self._open is None:
            return ()
        current, question = self._open.round, self._open.question
        return tuple(replace(question, silo=name) for name in current.asked if current.awaits(name))

    def receive(self, message: Arrived) -> bool:
        """Take what arrived; return whether it is no answer to the question, and its silo may be asked again.

        What is late, repeated, or of another study, run or silo, changes nothing.
        """
        if isinstance(message, Unreadable):
            return self._set_aside(message.silo, message.problem)
        if self._open is None:
            return False
        current, silo, body = self._open.round, message.silo, message.body
        place = (self._study.digest, self.run, current.number)
        if (message.study, message.run, message.round) != place or not current.awaits(silo):
            return False
        if isinstance(body, Refusal):
            current.refused[silo] = cleaned(body.reason)
        elif problem := self._problem_with(body, silo, self._open):
            return self._set_aside(silo, problem)
        else:
            current.answers[silo] = body
        current.set_aside.pop(silo, None)
        current.bytes_up += encoded_size(message)
        del message, body  # or it is held until the next round is open
        everyone = len(current.answers) + len(current.refused) == len(current.asked)
        if everyone or len(current.answers) >= self._open.enough:
            self.deadline()
        return False

    def deadline(self) -> None:
        """Close the open round; refuse to go on with too few answers."""
        if self._open is None:
            return
        current, needed = self._open.round, min(self.min_silos, self._open.enough)
        if len(current.answers) < needed:
            for name, reason in current.refused.items():
                raise RefusedError(f"silo {name!r} refused: {reason}")
            more = [f"; the answer of {name} was rejected: {why}" for name, why in current.set_aside.items()]
            silent = ", ".join(name for name in current.asked if name not in current.answers)
            raise ProtocolError(
                f"round {current.number} must have {needed} answers, got {len(current.answers)}; reconnect "
                f"{silent} or lower min_silos{''.join(more[:1])}"
            )
        current.answers = {n: current.answers[n] for n in self.silos if n in current.answers}
        if self._on_closed is not None:
            self._on_closed(current)
        self._advance(current)

    def _set_aside(self, silo: str, problem: str) -> bool:
        current = None if self._open is None else self._open.round
        if current is not None and current.awaits(silo):
            logger.warning("rejected the answer of silo %r in round %d: %s", silo, current.number, problem)
            current.set_aside[silo] = problem
        return True

    def _advance(self, closed: Round | None) -> None:
        while not self.done:
            self._open = None  # the question may be large and is no longer needed
            try:
                ask = next(self._solver) if closed is None else self._solver.send(closed)
            except StopIteration as stop:
                self.outcome, self.done = stop.value, True
            if closed is not None and self._on_round is not None:
                self._on_round(closed)
            if not self.done:
                self._open = self._opened(ask)
                self.history.append(self._open.round)
                if not self._is_recorded(self._open):
                    break
                closed = self._open.round

    def _is_recorded(self, opened: _Open) -> bool:
        if not self._recorded:
            return False
        current, known = opened.round, self._recorded.popleft()
        names = ("study", "run", "number", "asked", "question")
        same = all(getattr(known, name) == getattr(current, name) for name in names)
        current.answers = dict(known.answers)
        # What was written down by a coordinator that checked less is asked again, from here on.
        if not same or any(
            name not in current.asked or self._problem_with(body, name, opened)
            for name, body in known.answers.items()
        ):
            self._recorded.clear()
            current.answers.clear()
            return False
        current.refused, current.set_aside = dict(known.refused), dict(known.set_aside)
        current.bytes_up = known.bytes_up
        self.n_replayed += 1
        return True

    def _opened(self, ask: Ask) -> _Open:
        asked = self.silos if ask.silos is None else ask.silos
        number, study = len(self.history), self._study.digest
        question = Message(study=study, run=self.run, round=number, silo="", body=ask.body)
        opened = Round(
            study=study,
            run=self.run,
            number=number,
            kind=getattr(ask.body, "label", ask.body.kind.removeprefix("ask-")),
            step=ask.step,
            asked=asked,
            question=digest_of(ask.body),
            local_steps=ask.body.n_local_steps if isinstance(ask.body, AskSteps) else 1,
            # The question is the same for all; only the name in it differs.
            bytes_down=encoded_size(question) * len(asked) + sum(len(name.encode()) for name in asked),
        )
        return _Open(opened, question, len(asked) if ask.enough is None else ask.enough)

    def _problem_with(self, body: Any, silo: str, opened: _Open) -> str | None:
        current, first = opened.round, self.history[0]
        enrolled = None if first is current else first.answers.get(silo)
        others = (each for name, each in current.answers.items() if name != silo)
        return problem_with(
            body,
            replace(opened.question, silo=silo),
            self._study,
            n_rows=getattr(enrolled, "n_rows", None),
            keys=(each.key for each in others if isinstance(each, SessionKey)),
        )


def check_silos(silos: Sequence[str], min_silos: int | None) -> None:
    """Refuse silos that no run can have."""
    if len(set(silos)) != len(silos) or not silos:
        raise ProtocolError(f"silos must be at least one, with different names, got {list(silos)}")
    for name in silos:
        if not is_showable(name):
            raise ProtocolError(f"a silo's name must not have control characters, got {name!a}; rename it")
    if min_silos is not None and not 1 <= min_silos <= len(silos):
        raise ProtocolError(f"min_silos must be between 1 and the {len(silos)} silos, got {min_silos}")


class Answers(Protocol):
    """Anything that answers like a silo."""

    def answer(self, message: Message) -> Message: ...
