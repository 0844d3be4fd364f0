"""A network in a test's hand: from the questions of a round to what arrives, as a generator."""

from collections.abc import Callable, Generator, Mapping

from fedpower.engines import inprocess
from fedpower.engines.inprocess import Pace
from fedpower.protocol.coordinator import Answers, Arrived, Coordinator
from fedpower.protocol.messages import Message

Asking = Generator[Arrived, tuple[Message, ...] | None, None]
"""Yields what arrives until the round's time is over; is sent the questions to be asked once more."""
Transport = Callable[[tuple[Message, ...]], Asking]


def drive(coordinator: Coordinator, ask: Transport) -> None:
    """Run a coordinator to its end; it holds the outcome and the history afterwards."""
    inprocess.drive(coordinator, _Carrier(ask), Pace())


def in_turn(silos: Mapping[str, Answers]) -> Transport:
    """Return what asks silos one after another, in the order of the questions."""

    def ask(questions: tuple[Message, ...]) -> Asking:
        waiting = list(questions)
        for question in waiting:
            waiting += (yield silos[question.silo].answer(question)) or ()

    return ask


class _Carrier:
    def __init__(self, ask: Transport) -> None:
        self._ask = ask
        self._asking: Asking | None = None
        self._sent: list[Message] = []

    def send(self, question: Message) -> None:
        self._sent.append(question)

    def wait(self, seconds: float | None) -> Arrived | None:
        questions, self._sent = tuple(self._sent), []
        try:
            if self._asking is None:
                self._asking = self._ask(questions)
                return next(self._asking)
            return self._asking.send(questions)
        except StopIteration:
            return None

    def leave(self) -> None:
        if self._asking is not None:
            self._asking.close()
        self._asking, self._sent = None, []
