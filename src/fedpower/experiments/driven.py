"""Runs of the protocol that are looked into: real silos, and the basis asked about in each round."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpower.engines.inprocess import Answers
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.exchange import Exchange
from fedpower.protocol.messages import AskSteps, Message, encode
from fedpower.protocol.open_releases import open_releases
from fedpower.protocol.releases import Moment
from fedpower.protocol.silo import Silo
from fedpower.protocol.study import Study

Array = NDArray[np.float64]
Ledgers = Mapping[str, Ledger]


@contextmanager
def ledgers_for(silos: Iterable[str], *, epsilon: float, delta: float) -> Iterator[Ledgers]:
    """Give a ledger in memory to each silo, with a cap of (ε, δ)."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Ledger.in_memory(epsilon, delta, silo=name)) for name in silos
        }


def silos_of(
    moments: Mapping[str, Moment],
    study: Study,
    *,
    ledgers: Ledgers,
    noise: Callable[[str], NoiseSource],
) -> dict[str, Silo]:
    """Return the silos of ``study`` over ``moments``.

    Parameters
    ----------
    moments
        What stands in for the silos' rows, by name.
    study
        The terms.
    ledgers
        What each silo charges in a private study. Studies that share ledgers share noised moments, as
        any later analysis does.
    noise
        From a silo's name to where its noise comes from; only asked in a private study.
    """
    private = study.noise != "none"
    return {
        name: Silo(
            name,
            study,
            # No version: these ledgers live no longer than these rows.
            open_releases(
                name,
                moment,
                study,
                ledger=ledgers[name] if private else None,
                source=noise(name) if private else None,
            ),
        )
        for name, moment in moments.items()
    }


class RememberingSilo:
    """A silo that is asked the same questions in run after run and works each answer out once.

    A silo gives the same question the same answer anyway; this saves the work.
    """

    def __init__(self, silo: Silo) -> None:
        self._silo = silo
        self._answers: dict[bytes, Message] = {}

    def answer(self, message: Message) -> Message:
        """Return the silo's answer to ``message``."""
        question = encode(replace(message, run="", round=0))
        if question not in self._answers:
            self._answers[question] = self._silo.answer(message)
        return replace(self._answers[question], run=message.run, round=message.round)


def drive(
    solver: Exchange,
    silos: Mapping[str, Answers],
    *,
    study: Study,
    reorder: Callable[[list[Message]], list[Message]] | None = None,
) -> tuple[Coordinator, list[Array]]:
    """Return the finished coordinator and the basis asked about in each round of steps.

    Parameters
    ----------
    solver
        What the coordinator asks.
    silos
        Whoever answers for them.
    study
        The terms they agreed to.
    reorder
        In which order the answers to a round's questions arrive; as asked unless given.
    """
    coordinator = Coordinator(solver, list(silos), study=study, run="experiment")
    bases: list[Array] = []
    while not coordinator.done:
        questions = list(coordinator.next())
        body, number = questions[0].body, questions[0].round
        if isinstance(body, AskSteps):
            bases.append(body.basis)
        for question in questions if reorder is None else reorder(questions):
            if coordinator.done or coordinator.history[-1].number != number:
                break
            coordinator.receive(silos[question.silo].answer(question))
    return coordinator, bases
