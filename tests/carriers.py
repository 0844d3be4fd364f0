"""A network in a test's hand: from the questions that are sent to what arrives, one after another."""

import itertools
from collections.abc import Callable, Iterator, Mapping

from fedpower.engines import inprocess
from fedpower.engines.inprocess import Pace
from fedpower.protocol.coordinator import Answers, Arrived, Coordinator
from fedpower.protocol.messages import Message

Transport = Callable[[tuple[Message, ...]], Iterator[Arrived]]


def drive(coordinator: Coordinator, ask: Transport) -> None:
    """Run a coordinator to its end; it holds the outcome and the history afterwards."""
    inprocess.drive(coordinator, _Carrier(ask), Pace())


def in_turn(silos: Mapping[str, Answers]) -> Transport:
    """Return what asks silos one after another, in the order of the questions."""
    return lambda questions: (silos[question.silo].answer(question) for question in questions)


class _Carrier:
    def __init__(self, ask: Transport) -> None:
        self._ask = ask
        self.leave()

    def send(self, question: Message) -> None:
        self._sent.append(question)

    def wait(self, seconds: float | None) -> Arrived | None:
        if self._sent:
            self._arriving = itertools.chain(self._arriving, self._ask(tuple(self._sent)))
            self._sent = []
        return next(self._arriving, None)

    def leave(self) -> None:
        self._sent: list[Message] = []
        self._arriving: Iterator[Arrived] = iter(())
