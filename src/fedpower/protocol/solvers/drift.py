"""Drift-corrected local steps: no bias from heterogeneity, and a safeguard [FP §3.3, open question]."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import orth, ritz_pairs, sin_theta
from fedpower.linalg.subspace import Alignment
from fedpower.linalg.symmetric import rayleigh_ritz, rounding_level, subspace_error
from fedpower.protocol.coordinator import Ask, Round
from fedpower.protocol.messages import LocalSteps, read_only
from fedpower.protocol.solvers.shared import Solution, Steps, align, shares, weighted_sum

Array = NDArray[np.float64]

# Plain local steps end about BIAS·ρ² from the pooled eigenspace, ρ the misalignment of the silos' bases: to
# first order their biases average out. Once a round moves less, they have nothing to give.
_BIAS = 0.1
_PATIENCE = 5  # plain local steps that move no less than so many rounds before never settle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A basis, its exact pooled product, and how far it is from invariant."""

    basis: Array
    product: Array
    residual: float
    captured: float
    error: float
    settled: bool


class DriftCorrected(Steps):
    """The loop and what it carries from round to round."""

    def run(
        self, start: Array, *, rank: int, n_steps: int | None, local_steps: int, alignment: Alignment
    ) -> Generator[Ask, Round, Solution]:
        """Return the :class:`Solution`."""
        self.rank, self.n_steps, self.local_steps, self.alignment = rank, n_steps, local_steps, alignment
        product, moved = yield from self._open(start)
        if self.rounds_left <= 0:
            values, vectors = ritz_pairs(orth(product), product, self.shift(2))
            return self._solution(values, vectors, change=moved, converged=False)
        best = yield from self._exact(orth(product))
        while not ((best.settled and self.tol > 0) or self._is_over):
            if self.local_steps == 1 or self.rounds_left == 1:
                best = yield from self._exact(orth(best.product + self.shift(2) * best.basis))
                continue
            product, _ = yield from self._local(best.basis, pooled=best.product)
            here = yield from self._exact(orth(product))
            # On the way from one eigenvector to a larger one the residual grows, and so does tr ZᵀAZ.
            if here.residual <= best.residual or here.captured > best.captured * (1 + 1e-12):
                best = here
            else:
                self.local_steps //= 2
        values, coefficients = rayleigh_ritz(best.basis, best.product)
        # As in the paper, the output is one step further than the last basis asked about.
        vectors = orth((best.product + self.shift(2) * best.basis) @ coefficients)
        return self._solution(values, vectors, change=best.error, converged=best.settled)

    def _solution(self, values: Array, vectors: Array, *, change: float, converged: bool) -> Solution:
        return self.solution(
            basis=vectors,
            values=values,
            vectors=vectors,
            rank=self.rank,
            change=change,
            converged=converged,
            law=self.law(self.sizes),
        )

    @property
    def _is_over(self) -> bool:
        return self.rounds_left <= 0 or (self.n_steps is not None and self.step >= self.n_steps)

    def _open(self, start: Array) -> Generator[Ask, Round, tuple[Array, float]]:
        """Return (product, change) of plain local steps, as long as these move more than their bias."""
        product, moves = start, [float("nan")]
        while self.local_steps > 1 and not self._is_over:
            before = orth(product)
            product, spread = yield from self._local(before)
            moves.append(sin_theta(before, orth(product)[:, : self.rank]))
            settled = moves[-1] <= max(_BIAS * spread**2, self.tol, 1e-12)
            if settled or (len(moves) > _PATIENCE and moves[-1] > 0.9 * moves[-1 - _PATIENCE]):
                break
        return product, moves[-1]

    def _exact(self, basis: Array) -> Generator[Ask, Round, _Point]:
        """Return the :class:`_Point` of a basis: one round, one step."""
        self.step += 1
        closed = yield from self.ask(basis)
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
            error = sin_theta(basis, orth(product + self.shift(2) * basis))
        closed.notes["change"] = error
        scale = max(float(values[self.rank - 1]) + self.shift(2), rounding)
        return _Point(
            basis=basis,
            product=product,
            residual=size / scale if scale > 0 else 0.0,
            captured=float(values[: self.rank].sum()),
            error=error,
            settled=error <= self.tol or size <= rounding,
        )

    def _local(self, basis: Array, pooled: Array | None = None) -> Generator[Ask, Round, tuple[Array, float]]:
        """Return (average of the silos' products after p local steps, ρ), plain or corrected."""
        self.step += self.local_steps
        correction = None if pooled is None else read_only(pooled)
        closed = yield from self.ask(basis, self.local_steps, shift=self.shift(2), pooled=correction)
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
