"""When a round is over: the one rule, and the one clock, for every engine that has one."""

import time
from dataclasses import dataclass
from typing import Protocol

from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.driving import Arrived, Ask, Asking
from fedpower.protocol.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a round may take. Durations on one machine's clock: clocks need not agree."""

    deadline: float | None = None
    grace: float | None = None
    enough: int = 1

    def left(self, elapsed: float, since_enough: float | None) -> float | None:
        """Return how many seconds the round has left, 0 when it is over; None without an end."""
        ends = []
        if self.deadline is not None:
            ends.append(self.deadline - elapsed)
        if self.grace is not None and since_enough is not None:
            ends.append(self.grace - since_enough)
        return max(0.0, min(ends)) if ends else None


class _Carrier(Protocol):
    """Carries questions to silos, all at once, and what comes back."""

    def send(self, question: Message) -> None:
        """Send a question on its way, and return at once."""

    def wait(self, seconds: float | None) -> Arrived | None:
        """Return what comes next; None when that time is over, or nothing can come any more."""

    def leave(self) -> None:
        """Wait for none of what was sent: the round is over."""


def paced(carrier: _Carrier, coordinator: Coordinator, pace: Pace) -> Ask:
    """Return what asks silos through a carrier, for as long as ``pace`` gives a round."""

    def ask(questions: tuple[Message, ...]) -> Asking:
        started, enough = time.monotonic(), None
        try:
            _send(carrier, questions)
            questions = ()  # what is on its way is not held here: it may be as large as a basis
            while True:
                now = time.monotonic()
                if enough is None and len(coordinator.history[-1].answers) >= pace.enough:
                    enough = now
                left = pace.left(now - started, None if enough is None else now - enough)
                arrived = [each for each in (carrier.wait(left),) if each is not None]
                if not arrived:
                    return
                _send(carrier, (yield arrived.pop()) or ())
        finally:
            carrier.leave()

    return ask


def _send(carrier: _Carrier, questions: tuple[Message, ...]) -> None:
    for question in questions:
        carrier.send(question)
