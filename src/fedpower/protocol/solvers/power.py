"""The paper's Algorithms 1, 2 and 3, LocalPower, one-shot and drift-corrected steps [FP]."""

import math
from collections.abc import Generator, Iterator
from itertools import accumulate, count
from typing import NamedTuple

import numpy as np

from fedpower.linalg import (
    Array,
    compressed,
    orth,
    rayleigh_ritz,
    ritz_pairs,
    rounding_level,
    sin_theta,
    subspace_error,
)
from fedpower.options import PowerMethod
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import LocalSteps, read_only
from fedpower.protocol.solvers.shared import (
    Solution,
    SolverSettings,
    Steps,
    align,
    enrol,
    rank_for,
    shares,
    weighted_sum,
)


def solve(settings: SolverSettings, rng: np.random.Generator, run: str = "") -> Exchange:
    """Return the :class:`Solution` of the federated power method [FP Algs. 1–3]."""
    sizes, d, rank = (yield from enrol()), settings.study.n_features, settings.rank
    if settings.solver.drift_correction:
        drift = yield from _DriftCorrected.opened(settings, sizes, rng)
        return (yield from drift.run(orth(rng.standard_normal((d, settings.study.iteration_rank)))))
    iteration = yield from _Iteration.opened(settings, sizes, rng)
    if not isinstance(rank, float):
        start = orth(rng.standard_normal((d, settings.study.iteration_rank)))
        return (yield from iteration.run(start, int(rank)))
    width = min(d, 16)
    start = orth(rng.standard_normal((d, width)))
    while True:
        trusted = width if width == d else width // 2
        solution = yield from iteration.run(start, trusted, fraction=rank)
        if solution.rank <= trusted or width == d:
            return solution
        width = min(2 * width, d)
        fresh = rng.standard_normal((d, width - solution.basis.shape[1]))
        start = orth(np.hstack([solution.basis, fresh]))


def steps_of_rounds(option: PowerMethod) -> Iterator[int]:
    """Return the steps at which a round happens, in order; endless unless they are given one by one.

    The number of steps between two does not change [FP eq. 3.1], is one less each time [FP eq. 3.11], or is
    halved [LocalPower §3].
    """
    if not isinstance(option.schedule, str):
        return iter(sorted(set(map(int, option.schedule))))
    p = option.local_steps
    intervals = {
        "every": lambda i: p,
        "decaying": lambda i: max(p - i, 1),
        "halving": lambda i: max(p >> i, 1),
    }
    return accumulate(map(intervals[option.schedule], count()))


class _Iteration(Steps):
    """The loop of [FP Alg. 2] and what it carries from round to round."""

    def run(self, start: Array, rank: int, fraction: float | None = None) -> Generator[Ask, Round, Solution]:
        option, self.step = self.settings.solver, 0
        basis, change, converged = start, float("nan"), False
        schedule, endless = steps_of_rounds(option), isinstance(option.schedule, str)
        last = self.settings.n_steps or (math.inf if endless else max(option.schedule))
        always = next(iter(self.sizes)) if option.reference == "first" else None
        while self.step < last:
            stop = next(schedule, math.inf)
            is_round, step_to = stop <= last, int(min(stop, last))
            n_local_steps, self.step = step_to - self.step, step_to
            shift = self.shift(n_local_steps)
            opened = yield from self.ask(
                basis,
                n_local_steps,
                silos=self.sampler.draw(always) if is_round else self.sampler.asked(always),
                enough=self.sampler.enough,
                shift=shift,
                align=option.alignment if option.reference == "broadcast" else None,
            )
            before = basis
            product, output, inner = self._aggregate(basis, opened, is_round)
            basis = orth(output)
            values, vectors = ritz_pairs(basis, product, shift)
            change = sin_theta(before, vectors[:, : _significant(values + shift, rank)])
            opened.notes["change"] = change
            converged = change <= self.tol
            if (converged and self.tol > 0) or self.rounds_left <= 0:
                break
        law = self.law(opened.answers)
        if law is not None and not law.once:  # its singular values are above all of its noise's
            values = np.asarray(np.linalg.eigvalsh(inner)[::-1], dtype=np.float64)
        return self.solution(
            basis=basis,
            values=values,
            vectors=vectors,
            rank=rank if fraction is None else rank_for(fraction, values, self.total_variance),
            change=change,
            converged=converged,
            law=law,
        )

    def _aggregate(self, broadcast: Array, opened: Round, is_round: bool) -> tuple[Array, Array, Array]:
        """Return the pooled product, what the next basis is the ``orth`` of, and ZᵀY [FP Alg. 2, 11–12]."""
        answers: dict[str, LocalSteps] = opened.answers
        option = self.settings.solver
        weights = self.sampler.weights(answers)
        bases = {name: broadcast if a.basis is None else a.basis for name, a in answers.items()}
        first = next(iter(self.sizes))

        def aligned(bases: dict[str, Array], matrices: dict[str, Array]) -> tuple[dict[str, Array], float]:
            """Return ``matrices`` rotated by the D of their ``bases``, and ρ_t [FP eqs. 3.2, 3.3]."""
            reference = broadcast
            if option.reference != "broadcast":  # the first silo; any that answered where it did not
                reference = bases.get(first, next(iter(bases.values())))
            return align(bases, matrices, reference=reference, alignment=option.alignment)

        products, spread = aligned(bases, {name: answer.product for name, answer in answers.items()})
        reported = [a.misalignment for a in answers.values() if a.misalignment is not None]
        opened.notes["misalignment"] = max([spread, *reported])
        product = weighted_sum(products, weights)
        turned, _ = aligned(bases, bases)
        inner = weighted_sum({n: compressed(turned[n], products[n]) for n in products}, weights)
        if is_round:
            return product, product, inner
        local = {name: orth(local_product) for name, local_product in products.items()}
        return product, weighted_sum(aligned(local, local)[0], weights), inner


def _significant(values: Array, rank: int) -> int:
    """Return how many of the leading ``rank`` values stand above rounding, one at least."""
    floor = values[0] * values.size * 64 * np.finfo(np.float64).eps
    return max(1, int((values[:rank] > floor).sum()))


class _Point(NamedTuple):
    """A basis, its exact pooled product, and how far it is from invariant."""

    basis: Array
    product: Array
    residual: float
    captured: float
    error: float
    settled: bool


class _DriftCorrected(Steps):
    """Local steps without bias from heterogeneity, and a safeguard [FP §3.3, open question]."""

    def run(self, start: Array) -> Generator[Ask, Round, Solution]:
        self.rank, last = int(self.settings.rank), self.settings.n_steps or math.inf
        self.local_steps = next(steps_of_rounds(self.settings.solver))
        best = yield from self._exact(start)
        while self.rounds_left > 0 and self.step < last and not (best.settled and self.tol > 0):
            if self.local_steps == 1 or self.rounds_left == 1:
                best = yield from self._exact(orth(best.product + self.shift(2) * best.basis))
                continue
            product = yield from self._local(best)
            here = yield from self._exact(orth(product))
            # On the way from one eigenvector to a larger one the residual grows, and so does tr ZᵀAZ.
            if here.residual <= best.residual or here.captured > best.captured * (1 + 1e-12):
                best = here
            else:
                self.local_steps //= 2
        values, coefficients = rayleigh_ritz(best.basis, best.product)
        # As in the paper, the output is one step further than the last basis asked about.
        vectors = orth((best.product + self.shift(2) * best.basis) @ coefficients)
        return self.solution(
            basis=vectors,
            values=values,
            vectors=vectors,
            rank=self.rank,
            change=best.error,
            converged=best.settled,
            law=self.law(self.sizes),
        )

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

    def _local(self, at: _Point) -> Generator[Ask, Round, Array]:
        """Return the average of the silos' products after p corrected local steps."""
        self.step += self.local_steps
        pooled = read_only(at.product)
        closed = yield from self.ask(at.basis, self.local_steps, shift=self.shift(2), pooled=pooled)
        answers: dict[str, LocalSteps] = closed.answers
        bases = {name: at.basis if a.basis is None else a.basis for name, a in answers.items()}
        products, spread = align(
            bases,
            {name: answer.product for name, answer in answers.items()},
            reference=next(iter(bases.values())),
            alignment=self.settings.solver.alignment,
        )
        product = weighted_sum(products, shares(answers, self.mass))
        closed.notes["misalignment"] = spread
        closed.notes["change"] = sin_theta(at.basis, orth(product)[:, : self.rank])
        return product
