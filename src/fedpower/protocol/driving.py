"""The one way to drive a run: questions out, answers in, round by round, until the solver is done."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, cast

from fedpower.protocol.coordinator import Coordinator, Receipt
from fedpower.protocol.exchange import Round
from fedpower.protocol.messages import Message

MOST_ATTEMPTS = 3
"""How often a question is asked within a round whose answers are malformed."""


class Answers(Protocol):
    """Anything that answers like a silo."""

    def answer(self, message: Message) -> Message:
        """Return the answer to ``message``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """What came from a silo and is no message, and why."""

    silo: str
    problem: str


Arrived = Message | Unreadable
Asking = Generator[Arrived, tuple[Message, ...] | None, None]
"""Yields what arrives until the round's time is over; is sent the questions to be asked once more."""
Ask = Callable[[tuple[Message, ...]], Asking]
"""From a round's questions to what arrives."""


def drive(coordinator: Coordinator, ask: Ask) -> None:
    """Run a coordinator to its end; it holds the outcome and the history afterwards."""
    for _ in rounds(coordinator, ask):
        pass


def rounds(coordinator: Coordinator, ask: Ask) -> Iterator[Round]:
    """Yield each round once it is closed; a run that is not asked for the next one stops there."""
    while not coordinator.done:
        current = coordinator.history[-1]
        _run(coordinator, current, ask)
        yield current


def in_turn(silos: Mapping[str, Answers]) -> Ask:
    """Return what asks silos one after another, in the order of the questions."""

    def ask(questions: tuple[Message, ...]) -> Asking:
        waiting = list(questions)
        for question in waiting:
            waiting += (yield silos[question.silo].answer(question)) or ()

    return ask


def _run(coordinator: Coordinator, current: Round, ask: Ask) -> None:
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
    """Hand over what arrived, which nobody else holds then: an answer may be as large as a basis."""
    if isinstance(arrived[0], Unreadable):
        return coordinator.set_aside(arrived[0].silo, arrived[0].problem)
    return coordinator.receive(cast("Message", arrived.pop()))
