"""Pooled products A·W over silos that may be late: asked, asked again, and filled in."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import orth
from fedpower.protocol.exchange import Ask, Exchange, Round
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only
from fedpower.protocol.solvers.evidence import Evidence
from fedpower.protocol.solvers.participation import Turnout
from fedpower.protocol.solvers.pooling import align, mean_trace, weighted_sum

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A pooled product and how good it is.

    Attributes
    ----------
    value
        Σ w_i A_iW over the silos known so far.
    completeness
        The share of that weight whose silos answered; the rest is filled in.
    doubt
        About how far, in the spectral norm, what was filled in may be off.
    closed
        The round that completed it.
    """

    value: Array
    completeness: float
    doubt: float
    closed: Round


class Products:
    """Asks silos for products and keeps what each of them said.

    A silo gives the same question the same answer, so a block that only K of m silos answered is asked
    of the others again, at most ``max_reasks`` times. What is still missing is filled in: for a silo
    that answered before, its model N_i·W (exact on its earlier answers and, by symmetry, on their
    rows) plus what those who answered had on average beyond their own models; a silo never heard of is
    left out, weights and all. A silo silent to the end of a block is not waited for in the next ones
    until it answers again.

    Parameters
    ----------
    turnout
        Whom to ask first; its weights play no part: draws decide who is asked, s_i/n weighs.
    center
        The mean row to subtract, or None.
    evidence
        By silo; None keeps none, and a missing silo is then left out of the block's average.
    lookahead
        Ask for two local steps instead of one. The answer (Y, Z) = (A_iZ, orth(A_iW)) gives A_iW back
        exactly, as Z(YᵀW), because A_i is symmetric: the second step A_iZ comes on top.
    max_reasks, max_rounds
        See above; the most exchanges in all.
    """

    def __init__(
        self,
        turnout: Turnout,
        *,
        center: Array | None,
        evidence: Mapping[str, Evidence] | None,
        lookahead: bool,
        max_reasks: int,
        max_rounds: int | None,
    ) -> None:
        self.rounds = 0
        self.step = 0
        self.evidence = evidence
        self._turnout = turnout
        self._center = center
        self._lookahead = lookahead
        self._max_reasks = max_reasks
        self._max_rounds = max_rounds
        self._traces: dict[str, list[float]] = {}
        self._absent: set[str] = set()

    @property
    def exhausted(self) -> bool:
        """Whether no exchange is left."""
        return self._max_rounds is not None and self.rounds >= self._max_rounds

    @property
    def total_variance(self) -> float:
        """Σ w_i tr A_i, or NaN."""
        return mean_trace(self._traces, self._turnout.sizes)

    def multiply(self, block: Array) -> Exchange:
        """Return the :class:`Product` of the pooled moment and an orthonormal block W."""
        n_steps = 2 if self._lookahead else 1
        self.step += n_steps
        known: dict[str, Array] = {}
        seconds: dict[str, tuple[Array, Array]] = {}
        for attempt in range(1 + self._max_reasks):
            silos = self._turnout.draw(None) if attempt == 0 else self._to_ask_again(known)
            if not silos or (attempt > 0 and self.exhausted):
                break
            closed = yield self._ask(block, n_steps, silos, again=attempt > 0)
            answers: dict[str, LocalSteps] = closed.answers
            self._absent |= closed.refused.keys()
            for name, answer in answers.items():
                if answer.basis is None:
                    known[name] = answer.product
                else:
                    known[name] = answer.basis @ (answer.product.T @ block)
                    seconds[name] = (answer.basis, answer.product)
        silent = {name for name in self._turnout.sizes if name not in known}
        self._absent = (self._absent | silent) - known.keys()
        product = self._pool(block, known, closed)
        self._remember(block, known, seconds)
        return product

    def warm(self, start: Array, n_steps: int, shift: float) -> Exchange:
        """Return (bases, round): each silo's own leading directions after ``n_steps`` local steps."""
        self.step += n_steps
        closed = yield self._ask(start, n_steps, self._turnout.draw(None), shift=shift)
        answers: dict[str, LocalSteps] = closed.answers
        bases: dict[str, Array] = {}
        for name, answer in answers.items():
            basis = start if answer.basis is None else answer.basis
            bases[name] = orth(answer.product)
            if self.evidence is not None:
                self.evidence[name].add(basis, answer.product - shift * basis)
        _, spread = align(bases, bases, reference=next(iter(bases.values())))
        closed.notes["misalignment"] = spread
        return bases, closed

    def model(self, block: Array) -> Array:
        """Return Σ w_i (N_i − c_iI)·block over the silos of which something is known."""
        assert self.evidence is not None
        known = {name: each for name, each in self.evidence.items() if not each.empty}
        return weighted_sum(
            {name: each.model(block) for name, each in known.items()}, self._weights(known)
        )

    def _ask(
        self,
        block: Array,
        n_steps: int,
        silos: tuple[str, ...] | None,
        *,
        again: bool = False,
        shift: float = 0.0,
    ) -> Exchange:
        enough = self._turnout.enough
        if enough is not None and silos is not None:
            enough = min(enough, len(silos))
        del again
        closed = yield Ask(
            body=AskSteps(
                basis=read_only(block), n_local_steps=n_steps, center=self._center, shift=shift
            ),
            silos=silos,
            enough=enough,
            step=self.step,
        )
        self.rounds += 1
        for name, answer in closed.answers.items():
            if answer.total_variance is not None:
                self._traces.setdefault(name, []).append(answer.total_variance)
        return closed
