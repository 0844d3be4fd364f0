"""The coordinator: drives a solver, one round at a time, whatever the network does to messages."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from fedpower.errors import ProtocolError, RefusedError, is_showable
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


class Receipt(Enum):
    """What the coordinator did with an arriving answer."""

    ACCEPTED = "accepted"
    REFUSED = "the silo refused"
    DUPLICATE = "already answered in this round"
    LATE = "belongs to a round that is closed"
    FOREIGN = "belongs to another study, run or silo, or to a round not yet asked"
    MALFORMED = "is no answer to the question, and is as if it had not come"


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
        self._ask: Ask | None = None
        self._round: Round | None = None
        self._advance(None)

    def next(self) -> tuple[Message, ...]:
        if self._round is None or self._ask is None:
            return ()
        open_ = [name for name in self._round.asked if not self._has_answered(name)]
        return tuple(self._message(name) for name in open_)

    def receive(self, message: Message) -> Receipt:
        current = self._round
        if message.study != self._study.digest or message.run != self.run:
            return Receipt.FOREIGN
        if current is None or message.round < current.number:
            return Receipt.LATE
        if message.round > current.number or message.silo not in current.asked:
            return Receipt.FOREIGN
        if self._has_answered(message.silo):
            return Receipt.DUPLICATE
        body = message.body
        if isinstance(body, Refusal):
            current.refused[message.silo] = cleaned(body.reason)
            receipt = Receipt.REFUSED
        else:
            problem = self._problem_with(body, message.silo)
            if problem is not None:
                return self.set_aside(message.silo, problem)
            current.answers[message.silo] = body
            receipt = Receipt.ACCEPTED
        current.set_aside.pop(message.silo, None)
        current.bytes_up += encoded_size(message)
        del message, body  # or it is held until the next round is open
        if self._is_complete(current):
            self._close(current)
        return receipt

    def set_aside(self, silo: str, problem: str) -> Receipt:
        current = self._round
        if current is not None and silo in current.asked and not self._has_answered(silo):
            logger.warning("what silo %r sent in round %d was set aside: %s", silo, current.number, problem)
            current.set_aside[silo] = problem
        return Receipt.MALFORMED

    def deadline(self) -> None:
        if self._round is not None:
            self._close(self._round)

    def _is_complete(self, current: Round) -> bool:
        if len(current.answers) + len(current.refused) == len(current.asked):
            return True
        assert self._ask is not None
        return self._ask.enough is not None and len(current.answers) >= self._ask.enough

    def _close(self, current: Round) -> None:
        needed = min(self.min_silos, len(current.asked))
        if self._ask is not None and self._ask.enough is not None:
            needed = min(needed, self._ask.enough)
        if len(current.answers) < needed:
            raise self._too_few(current, needed)
        current.answers = {n: current.answers[n] for n in self.silos if n in current.answers}
        if self._on_closed is not None:
            self._on_closed(current)
        self._advance(current)

    def _too_few(self, current: Round, needed: int) -> ProtocolError:
        for name, reason in current.refused.items():
            return RefusedError(f"silo {name!r} refused: {reason}")
        more = [f"; what {name} sent was set aside: {problem}" for name, problem in current.set_aside.items()]
        silent = ", ".join(name for name in current.asked if name not in current.answers)
        return ProtocolError(
            f"round {current.number} needs {needed} answers and got {len(current.answers)}; bring back "
            f"{silent} or lower min_silos{''.join(more[:1])}"
        )

    def _advance(self, closed: Round | None) -> None:
        self._hand_over(closed)
        while self._round is not None and self._is_recorded(self._round):
            self._hand_over(self._round)

    def _hand_over(self, closed: Round | None) -> None:
        self._round = self._ask = None  # nobody needs the question any more, which may be large
        try:
            ask = next(self._solver) if closed is None else self._solver.send(closed)
        except StopIteration as stop:
            self.outcome, self.done = stop.value, True
            ask = None
        if closed is not None and self._on_round is not None:
            self._on_round(closed)
        if ask is not None:
            self._open(ask)

    def _is_recorded(self, opened: Round) -> bool:
        if not self._recorded:
            return False
        known = self._recorded.popleft()
        same = all(
            getattr(known, name) == getattr(opened, name)
            for name in ("study", "run", "number", "asked", "question")
        )
        for name, body in known.answers.items() if same else ():
            # Written down by a coordinator that checked less: asked again, from here on.
            same = name in opened.asked and self._problem_with(body, name) is None
            if not same:
                break
            opened.answers[name] = body
        if not same:
            self._recorded.clear()
            opened.answers.clear()
            return False
        opened.refused, opened.set_aside = dict(known.refused), dict(known.set_aside)
        opened.bytes_up = known.bytes_up
        self.n_replayed += 1
        return True

    def _open(self, ask: Ask) -> None:
        asked = self.silos if ask.silos is None else ask.silos
        self._ask = ask
        self._round = Round(
            study=self._study.digest,
            run=self.run,
            number=len(self.history),
            kind=getattr(ask.body, "label", ask.body.kind.removeprefix("ask-")),
            step=ask.step,
            asked=asked,
            question=digest_of(Message(study="", run="", round=0, silo="", body=ask.body)),
            local_steps=ask.body.n_local_steps if isinstance(ask.body, AskSteps) else 1,
        )
        # The question is the same for all; only the name in it differs.
        size = encoded_size(self._message(""))
        self._round.bytes_down = sum(size + len(name.encode()) for name in asked)
        self.history.append(self._round)

    def _message(self, silo: str) -> Message:
        assert self._ask is not None
        assert self._round is not None
        opened = self._round
        return Message(
            study=opened.study, run=opened.run, round=opened.number, silo=silo, body=self._ask.body
        )

    def _has_answered(self, silo: str) -> bool:
        assert self._round is not None
        return silo in self._round.answers or silo in self._round.refused

    def _problem_with(self, body: Any, silo: str) -> str | None:
        assert self._ask is not None
        assert self._round is not None
        enrolled = self.history[0].answers.get(silo) if self.history[0] is not self._round else None
        keys: list[bytes] = []
        if isinstance(body, SessionKey):  # of whom only others have answered so far
            keys = [each.key for name, each in self._round.answers.items() if name != silo]
        return problem_with(
            body,
            self._ask.body,
            self._study,
            silo=silo,
            run=self.run,
            n_rows=getattr(enrolled, "n_rows", None),
            keys=keys,
        )


def check_silos(silos: Sequence[str], min_silos: int | None) -> None:
    """Refuse silos that no run can have."""
    if len(set(silos)) != len(silos) or not silos:
        raise ProtocolError(
            f"silos must have different names and there must be one at least, got {list(silos)}"
        )
    for name in silos:
        if not is_showable(name):
            raise ProtocolError(f"a silo's name must hold no control characters, got {name!a}; rename it")
    if min_silos is not None and not 1 <= min_silos <= len(silos):
        raise ProtocolError(f"min_silos must lie between 1 and the {len(silos)} silos, got {min_silos}")


MOST_ATTEMPTS = 3
"""How often a question is asked within a round whose answers are malformed."""


class Answers(Protocol):
    """Anything that answers like a silo."""

    def answer(self, message: Message) -> Message: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """What came from a silo and is no message, and why."""

    silo: str
    problem: str


Arrived = Message | Unreadable
Asking = Generator[Arrived, tuple[Message, ...] | None, None]
"""Yields what arrives until the round's time is over; is sent the questions to be asked once more."""
Transport = Callable[[tuple[Message, ...]], Asking]
"""From a round's questions to what arrives."""


def drive(coordinator: Coordinator, ask: Transport) -> None:
    """Run a coordinator to its end; it holds the outcome and the history afterwards."""
    for _ in rounds(coordinator, ask):
        pass


def rounds(coordinator: Coordinator, ask: Transport) -> Iterator[Round]:
    """Yield each round once it is closed; a run that is not asked for the next one stops there."""
    while not coordinator.done:
        current = coordinator.history[-1]
        _run(coordinator, current, ask)
        yield current


def in_turn(silos: Mapping[str, Answers]) -> Transport:
    """Return what asks silos one after another, in the order of the questions."""

    def ask(questions: tuple[Message, ...]) -> Asking:
        waiting = list(questions)
        for question in waiting:
            waiting += (yield silos[question.silo].answer(question)) or ()

    return ask


def _run(coordinator: Coordinator, current: Round, ask: Transport) -> None:
    attempts: Counter[str] = Counter()
    again: tuple[Message, ...] | None = None
    with closing(ask(coordinator.next())) as asking:
        while not coordinator.done and coordinator.history[-1] is current:
            try:
                arrived = [asking.send(again)]
            except StopIteration:
                coordinator.deadline()
                return
            again, silo = (), arrived[0].silo
            if _take(coordinator, arrived) is Receipt.MALFORMED:
                attempts[silo] += 1
                if attempts[silo] < MOST_ATTEMPTS:
                    again = tuple(q for q in coordinator.next() if q.silo == silo)


def _take(coordinator: Coordinator, arrived: list[Arrived]) -> Receipt:
    if isinstance(arrived[0], Unreadable):
        return coordinator.set_aside(arrived[0].silo, arrived[0].problem)
    return coordinator.receive(cast("Message", arrived.pop()))
