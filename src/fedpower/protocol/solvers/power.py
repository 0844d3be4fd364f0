"""The paper's Algorithms 1, 2 and 3, LocalPower and one-shot: one iteration, different settings [FP]."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg import orth, ritz_pairs, sin_theta
from fedpower.linalg.subspace import Alignment
from fedpower.linalg.symmetric import compressed, eigenvalues
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import LocalSteps
from fedpower.protocol.schedule import Schedule
from fedpower.protocol.solvers.drift import DriftCorrected
from fedpower.protocol.solvers.shared import (
    Solution,
    Steps,
    StepSettings,
    align,
    enrol,
    rank_for,
    weighted_sum,
)

Array = NDArray[np.float64]
Reference = Literal["first", "active", "broadcast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSettings(StepSettings):
    """How to iterate."""

    schedule: Schedule = field(default_factory=Schedule)
    alignment: Alignment = "procrustes"
    reference: Reference = "first"
    corrected: bool = False

    def __post_init__(self) -> None:
        if self.corrected and self.n_participants is not None:
            raise InputError(
                f"drift-corrected steps must hear every silo, got n_participants={self.n_participants}; "
                "leave it out or use solver='krylov'"
            )
        if self.corrected and isinstance(self.rank, float):
            raise InputError(
                "drift-corrected steps must know the number of components, got "
                f"{self.rank}; give a whole number or use solver='krylov'"
            )

    def solve(self, rng: np.random.Generator) -> Exchange:
        """Return the :class:`Solution` of the federated power method [FP Algs. 1–3]."""
        sizes, d = (yield from enrol()), self.n_features
        if self.corrected:
            drift = yield from DriftCorrected.opened(self, sizes, rng)
            assert not isinstance(self.rank, float)
            return (
                yield from drift.run(
                    orth(rng.standard_normal((d, self.iteration_rank))),
                    rank=self.rank,
                    n_steps=self.n_steps,
                    local_steps=next(self.schedule.steps()),
                    alignment=self.alignment,
                )
            )
        iteration = yield from _Iteration.opened(self, sizes, rng)
        if not isinstance(self.rank, float):
            start = orth(rng.standard_normal((d, self.iteration_rank)))
            return (yield from iteration.run(self, start, self.rank))
        width = min(d, 16)
        start = orth(rng.standard_normal((d, width)))
        while True:
            trusted = width if width == d else width // 2
            solution = yield from iteration.run(self, start, trusted, fraction=self.rank)
            if solution.rank <= trusted or width == d:
                return solution
            width = min(2 * width, d)
            fresh = rng.standard_normal((d, width - solution.basis.shape[1]))
            start = orth(np.hstack([solution.basis, fresh]))


class _Iteration(Steps):
    """The loop of [FP Alg. 2] and what it carries from round to round."""

    completeness = 1.0

    def run(
        self, settings: PowerSettings, start: Array, rank: int, fraction: float | None = None
    ) -> Generator[Ask, Round, Solution]:
        self.step = 0
        basis, change, converged = start, float("nan"), False
        schedule_steps = settings.schedule.steps()
        last = settings.n_steps if settings.n_steps is not None else settings.schedule.last_step
        always = next(iter(self.sizes)) if settings.reference == "first" else None
        while last is None or self.step < last:
            stop = next(schedule_steps, None)
            is_round = stop is not None and (last is None or stop <= last)
            step_to = stop if stop is not None and is_round else last
            assert step_to is not None
            n_local_steps, self.step = step_to - self.step, step_to
            shift = self.shift(n_local_steps)
            opened = yield from self.ask(
                basis,
                n_local_steps,
                silos=self.sampler.draw(always) if is_round else self.sampler.asked(always),
                enough=self.sampler.enough,
                shift=shift,
                align=settings.alignment if settings.reference == "broadcast" else None,
            )
            before = basis
            product, output, inner = self._aggregate(settings, basis, opened, is_round)
            basis = orth(output)
            values, vectors = ritz_pairs(basis, product, shift)
            change = sin_theta(before, vectors[:, : _significant(values + shift, rank)])
            opened.notes["change"] = change
            converged = change <= self.tol
            if (converged and self.tol > 0) or self.rounds_left <= 0:
                break
        law = self.law(opened.answers)
        if law is not None and not law.once:  # its singular values are above all of its noise's
            values = eigenvalues(inner)
        return self.solution(
            basis=basis,
            values=values,
            vectors=vectors,
            rank=rank if fraction is None else rank_for(fraction, values, self.total_variance),
            change=change,
            converged=converged,
            completeness=self.completeness,
            law=law,
        )

    def _aggregate(
        self, settings: PowerSettings, broadcast: Array, opened: Round, is_round: bool
    ) -> tuple[Array, Array, Array]:
        """Return the pooled product, what the next basis is the ``orth`` of, and ZᵀY [FP Alg. 2, 11–12]."""
        answers: dict[str, LocalSteps] = opened.answers
        weights = self.sampler.weights(answers)
        if self.sampler.enough is None:
            heard, asked = (sum(self.sizes[name] for name in names) for names in (answers, opened.asked))
            self.completeness = min(self.completeness, heard / asked)
        bases = {name: broadcast if a.basis is None else a.basis for name, a in answers.items()}
        first = next(iter(self.sizes))

        def aligned(bases: dict[str, Array], matrices: dict[str, Array]) -> tuple[dict[str, Array], float]:
            """Return ``matrices`` rotated by the D of their ``bases``, and ρ_t [FP eqs. 3.2, 3.3]."""
            reference = broadcast
            if settings.reference != "broadcast":  # the first silo; any that answered where it did not
                reference = bases.get(first, next(iter(bases.values())))
            return align(bases, matrices, reference=reference, alignment=settings.alignment)

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
