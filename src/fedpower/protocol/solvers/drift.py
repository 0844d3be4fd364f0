"""Drift-corrected local steps: no bias from heterogeneity, and a safeguard [FP §3.3, open question]."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import orth, ritz_pairs, sin_theta
from fedpower.linalg.subspace import Alignment
from fedpower.linalg.symmetric import rayleigh_ritz, rounding_level, subspace_error
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only
from fedpower.protocol.solvers.shared import Solution, align, mean_trace, present, shares, weighted_sum
from fedpower.protocol.study import NoiseLaw

Array = NDArray[np.float64]

_BIAS = 0.1
"""Plain local steps end about BIAS·ρ² from the pooled eigenspace, ρ the misalignment of the silos'
bases: what they lean to first order averages out. Once a round moves less, they have nothing to give."""

PATIENCE = 5
"""Plain local steps that move no less than so many rounds before never settle: silos differ too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A basis, its exact pooled product, and how far it is from invariant."""

    basis: Array
    product: Array
    residual: float
    captured: float
    error: float
    settled: bool


class DriftCorrected:
    """The loop and what it carries from round to round."""

    def __init__(
        self,
        sizes: dict[str, int],
        mass: dict[str, int],
        *,
        rank: int,
        local_steps: int,
        alignment: Alignment = "procrustes",
        center: Array | None = None,
        gains: Array | None = None,
        shift: float = 0.0,
        tol: float = 0.0,
        n_steps: int | None = None,
        max_rounds: int | None = None,
        noise: Callable[[Mapping[str, int], float], NoiseLaw] | None = None,
    ) -> None:
        self.sizes = sizes
        self.mass = mass
        self.rank = rank
        self.local_steps = local_steps
        self.alignment = alignment
        self.center, self.gains = center, gains
        self.shift = shift
        self.tol = tol
        self.n_steps = n_steps
        self.max_rounds = max_rounds
        self.noise = noise
        self.rounds = 0
        self.step = 0
        self.traces: dict[str, list[float]] = {}
        self.answered: set[str] = set()

    def run(self, start: Array) -> Exchange:
        """Return the :class:`Solution`."""
        product, moved = yield from self._open(start)
        if self._rounds_left <= 0:
            basis = orth(product)
            return self._solution(*ritz_pairs(basis, product, self.shift), change=moved)
        best: _Point = yield from self._exact(orth(product))
        while not self._over(best):
            if self.local_steps == 1 or self._rounds_left == 1:
                best = yield from self._exact(orth(best.product + self.shift * best.basis))
                continue
            product, _ = yield from self._local(best.basis, pooled=best.product)
            here: _Point = yield from self._exact(orth(product))
            # On the way from one eigenvector to a larger one the residual grows, and so does tr ZᵀAZ.
            if here.residual <= best.residual or here.captured > best.captured * (1 + 1e-12):
                best = here
            else:
                self.local_steps //= 2
        values, coefficients = rayleigh_ritz(best.basis, best.product)
        # As in the paper, the output is one step further than the last basis asked about.
        vectors = orth((best.product + self.shift * best.basis) @ coefficients)
        return self._solution(values, vectors, change=best.error, converged=best.settled)

    def _solution(self, values: Array, vectors: Array, *, change: float, converged: bool = False) -> Solution:
        norm = 0.0 if self.center is None else float(np.linalg.norm(self.center))
        return Solution(
            basis=vectors,
            values=values,
            vectors=vectors,
            rank=self.rank,
            total_variance=mean_trace(self.traces, self.mass),
            center=self.center,
            sizes=present(self.sizes, self.sizes, self.answered),
            n_steps=self.step,
            change=change,
            converged=converged,
            law=None if self.noise is None else self.noise(self.sizes, norm),
            gains=self.gains,
        )

    def _over(self, best: _Point) -> bool:
        return (best.settled and self.tol > 0) or self._steps_gone or self._rounds_left <= 0

    @property
    def _steps_gone(self) -> bool:
        return self.n_steps is not None and self.step >= self.n_steps

    @property
    def _rounds_left(self) -> float:
        return float("inf") if self.max_rounds is None else self.max_rounds - self.rounds

    def _open(self, start: Array) -> Exchange:
        """Return (product, change) of plain local steps, as long as these move more than their bias."""
        product, moves = start, [float("nan")]
        while self.local_steps > 1 and self._rounds_left > 0 and not self._steps_gone:
            before = orth(product)
            product, spread = yield from self._local(before, pooled=None)
            moves.append(sin_theta(before, orth(product)[:, : self.rank]))
            settled = moves[-1] <= max(_BIAS * spread**2, self.tol, 1e-12)
            if settled or (len(moves) > PATIENCE and moves[-1] > 0.9 * moves[-1 - PATIENCE]):
                break
        return product, moves[-1]

    def _exact(self, basis: Array) -> Exchange:
        """Return the :class:`_Point` of a basis: one round, one step."""
        closed: Round = yield from self._ask(AskSteps(basis=read_only(basis), n_local_steps=1))
        answers: dict[str, LocalSteps] = closed.answers
        product = weighted_sum({n: a.product for n, a in answers.items()}, shares(answers, self.mass))
        values, coefficients = rayleigh_ritz(basis, product)
        leading = coefficients[:, : self.rank]
        residual = product @ leading - (basis @ leading) * values[: self.rank]
        size = float(np.linalg.norm(residual, 2))
        rounding = rounding_level(values, len(basis))
        if values.size > self.rank:
            error = subspace_error(values, size, self.rank, rounding)
        else:  # no θ_{k+1} in sight: how far one more step moves the subspace
            error = sin_theta(basis, orth(product + self.shift * basis))
        closed.notes["change"] = error
        scale = max(float(values[self.rank - 1]) + self.shift, rounding)
        return _Point(
            basis=basis,
            product=product,
            residual=size / scale if scale > 0 else 0.0,
            captured=float(values[: self.rank].sum()),
            error=error,
            settled=error <= self.tol or size <= rounding,
        )

    def _local(self, basis: Array, pooled: Array | None) -> Exchange:
        """Return (average of the silos' products after p local steps, ρ), plain or corrected."""
        closed: Round = yield from self._ask(
            AskSteps(
                basis=read_only(basis),
                n_local_steps=self.local_steps,
                shift=self.shift,
                pooled=None if pooled is None else read_only(pooled),
            )
        )
        answers: dict[str, LocalSteps] = closed.answers
        bases = {name: basis if a.basis is None else a.basis for name, a in answers.items()}
        products, spread = align(
            bases,
            {name: answer.product for name, answer in answers.items()},
            reference=next(iter(bases.values())),
            alignment=self.alignment,
        )
        product = weighted_sum(products, shares(answers, self.mass))
        closed.notes["misalignment"] = spread
        closed.notes["change"] = sin_theta(basis, orth(product)[:, : self.rank])
        return product, spread

    def _ask(self, body: AskSteps) -> Exchange:
        self.step += body.n_local_steps
        body = replace(body, center=self.center, gains=self.gains)
        closed: Round = yield Ask(body=body, silos=tuple(self.sizes), step=self.step)
        self.rounds += 1
        self.answered.update(closed.answers)
        for name, answer in closed.answers.items():
            if answer.total_variance is not None:
                self.traces.setdefault(name, []).append(answer.total_variance)
        return closed
