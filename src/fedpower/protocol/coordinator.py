"""The coordinator: drives a solver, one round at a time, whatever the network does to messages.

Sans-IO: :meth:`Coordinator.next` says which questions are outstanding, :meth:`Coordinator.receive`
takes what arrives, :meth:`Coordinator.deadline` is called by an engine whose clock has run out. There are
no sockets, threads, clocks or files in here.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import Any

import numpy as np

from fedpower.errors import ProtocolError
from fedpower.privacy.data_version import is_label
from fedpower.protocol.exchange import Ask, Round
from fedpower.protocol.messages import (
    AskMean,
    AskMoment,
    AskSteps,
    Enrol,
    Enrolment,
    LocalSteps,
    MeanRow,
    Message,
    PackedMoment,
    Question,
    Refusal,
    encode,
    encoded_size,
)
from fedpower.protocol.secure_messages import AskMasked, CallRoll, KeyGone, MaskedMoment, Present

ANSWER_TO: dict[type, type | tuple[type, ...]] = {
    Enrol: Enrolment,
    AskMean: MeanRow,
    AskSteps: LocalSteps,
    AskMoment: PackedMoment,
    CallRoll: Present,
    AskMasked: (MaskedMoment, KeyGone),
}


class Receipt(Enum):
    """What the coordinator did with an arriving answer."""

    ACCEPTED = "accepted"
    REFUSED = "the silo refused"
    DUPLICATE = "already answered in this round"
    LATE = "belongs to a round that is closed"
    FOREIGN = "belongs to another study, run or silo, or to a round not yet asked"
    MALFORMED = "does not have the shape or the finite values of an answer to the question"


class Coordinator:
    """Runs ``solver`` over ``silos`` and holds the record of its rounds.

    Parameters
    ----------
    solver
        A generator that yields :class:`Ask` and is sent :class:`Round`; its return value is
        :attr:`outcome`.
    silos
        Names of the enrolled silos; their order is the order of every sum.
    study, run
        The study's hash and this run's identity; both are in every message.
    min_silos
        Fewer answers than this in a round end the run; all of ``silos`` unless given.
    on_round
        Called with each round once the solver has digested it.
    on_closed
        Called with each round as it closes, before the solver sees it: the place to write it down.
    recorded
        Rounds that an earlier coordinator of this run wrote down, in order; they are not asked again.
        A solver is a function of its settings, its randomness and its rounds, so the run goes on as if
        it had never stopped. Ignored from the first one on that answers another question.
    """

    def __init__(
        self,
        solver: Generator[Ask, Round, Any],
        silos: Sequence[str],
        *,
        study: str,
        run: str,
        min_silos: int | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_closed: Callable[[Round], None] | None = None,
        recorded: Sequence[Round] = (),
    ) -> None:
        if len(set(silos)) != len(silos) or not silos:
            raise ProtocolError(
                f"silos must have different names and there must be one at least, got {list(silos)};"
                " rename them"
            )
        self.silos = tuple(silos)
        self.min_silos = len(self.silos) if min_silos is None else min_silos
        if not 1 <= self.min_silos <= len(self.silos):
            raise ProtocolError(
                f"min_silos must lie between 1 and the {len(self.silos)} silos, "
                f"got {self.min_silos}; choose a number in between"
            )
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

    @property
    def interruptible(self) -> bool:
        """Whether silos may be started again here at no cost: the keys of an open roll would be lost."""
        return self._ask is None or not isinstance(self._ask.body, AskMasked)

    def next(self) -> tuple[Message, ...]:
        """Return the questions of the current round that have no answer yet.

        Asking again is free of consequences: a silo gives the same question the same answer.
        """
        if self._round is None or self._ask is None:
            return ()
        open_ = [name for name in self._round.asked if not self._has_answered(name)]
        return tuple(self._message(name) for name in open_)

    def receive(self, message: Message) -> Receipt:
        """Take an answer that arrived, whatever it is, and say what was done with it."""
        current = self._round
        if message.study != self._study or message.run != self.run:
            return Receipt.FOREIGN
        if current is None or message.round < current.number:
            return Receipt.LATE
        if message.round > current.number or message.silo not in current.asked:
            return Receipt.FOREIGN
        if self._has_answered(message.silo):
            return Receipt.DUPLICATE
        body = message.body
        if isinstance(body, Refusal):
            current.refused[message.silo] = body.reason
            receipt = Receipt.REFUSED
        elif self._is_well_formed(body):
            current.answers[message.silo] = body
            receipt = Receipt.ACCEPTED
        else:
            return Receipt.MALFORMED
        current.bytes_up += encoded_size(message)
        if self._is_complete(current):
            self._close(current)
        return receipt

    def deadline(self) -> None:
        """Close the round with those who answered; end the run if they are too few."""
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
            raise ProtocolError(self._too_few(current, needed))
        current.answers = {n: current.answers[n] for n in self.silos if n in current.answers}
        if self._on_closed is not None:
            self._on_closed(current)
        self._advance(current)

    def _too_few(self, current: Round, needed: int) -> str:
        for name, reason in current.refused.items():
            return f"silo {name!r} refused: {reason}"
        silent = [name for name in current.asked if name not in current.answers]
        return (
            f"round {current.number} needs {needed} answers and got {len(current.answers)}; "
            f"bring back {', '.join(silent)} or lower min_silos"
        )

    def _advance(self, closed: Round | None) -> None:
        """Hand the closed round to the solver and open the next, as often as that one is on record."""
        self._hand_over(closed)
        while self._round is not None and self._is_recorded(self._round):
            self._hand_over(self._round)

    def _hand_over(self, closed: Round | None) -> None:
        """Hand the closed round to the solver and open the one that it asks for."""
        self._round = None
        try:
            ask = next(self._solver) if closed is None else self._solver.send(closed)
        except StopIteration as stop:
            self.outcome, self.done, self._ask = stop.value, True, None
            ask = None
        if closed is not None and self._on_round is not None:
            self._on_round(closed)
        if ask is not None:
            self._open(ask)

    def _is_recorded(self, opened: Round) -> bool:
        """Return whether the round just opened was written down; it then holds what was."""
        if not self._recorded:
            return False
        known = self._recorded.popleft()
        if (known.number, known.asked, known.question) != (
            opened.number,
            opened.asked,
            opened.question,
        ):
            self._recorded.clear()
            return False
        opened.answers, opened.refused = dict(known.answers), dict(known.refused)
        opened.bytes_up = known.bytes_up
        self.n_replayed += 1
        return True

    def _open(self, ask: Ask) -> None:
        asked = self.silos if ask.silos is None else ask.silos
        self._ask = ask
        self._round = Round(
            number=len(self.history),
            kind=ask.body.kind.removeprefix("ask-"),
            step=ask.step,
            asked=asked,
            question=_digest(ask.body),
            local_steps=ask.body.n_local_steps if isinstance(ask.body, AskSteps) else 1,
        )
        # The question is the same for all; only the name in it differs.
        size = encoded_size(self._message(""))
        self._round.bytes_down = sum(size + len(name.encode()) for name in asked)
        self.history.append(self._round)

    def _message(self, silo: str) -> Message:
        assert self._ask is not None
        assert self._round is not None
        return Message(
            study=self._study,
            run=self.run,
            round=self._round.number,
            silo=silo,
            body=self._ask.body,
        )

    def _has_answered(self, silo: str) -> bool:
        assert self._round is not None
        return silo in self._round.answers or silo in self._round.refused

    def _is_well_formed(self, body: Any) -> bool:
        """Return whether ``body`` answers the question with finite values of the right shape."""
        assert self._ask is not None
        question = self._ask.body
        if not isinstance(body, ANSWER_TO[type(question)]):
            return False
        if isinstance(body, Enrolment) and body.data_version and not is_label(body.data_version):
            return False
        if isinstance(body, Enrolment | Present):
            return body.n_rows >= 1
        if isinstance(body, KeyGone):
            return True
        if isinstance(body, MaskedMoment):
            return body.words.ndim == 1
        if isinstance(body, MeanRow):
            return body.mean.ndim == 1 and bool(np.isfinite(body.mean).all())
        if isinstance(body, PackedMoment):
            mean = np.zeros(0) if body.mean is None else body.mean
            values = np.concatenate([body.triangle.ravel(), mean.ravel(), [body.total_variance]])
            return body.triangle.ndim == 1 and bool(np.isfinite(values).all())
        assert isinstance(question, AskSteps)
        assert isinstance(body, LocalSteps)
        return _answers_steps(question, body)


def _digest(question: Question) -> str:
    """Return what tells one question from another, whoever is asked it in whichever run."""
    return hashlib.sha256(
        encode(Message(study="", run="", round=0, silo="", body=question))
    ).hexdigest()


def _answers_steps(question: AskSteps, body: LocalSteps) -> bool:
    """Return whether shapes fit, all is finite, and a basis is there where one is needed."""
    bases = [] if body.basis is None else [body.basis]
    scalars = [x for x in (body.total_variance, body.misalignment) if x is not None]
    basis_needed = question.n_local_steps > 1 and question.align is None
    return (
        all(a.shape == question.basis.shape for a in (body.product, *bases))
        and all(bool(np.isfinite(a).all()) for a in (body.product, *bases))
        and bool(np.isfinite(scalars).all())
        and (not basis_needed or bool(bases))
    )
