"""Algorithms 1, 2 and 3 of the paper, LocalPower and one-shot: one iteration, different settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg import orth, ritz_pairs, sin_theta
from fedpower.linalg.subspace import Alignment
from fedpower.linalg.symmetric import compressed, eigenvalues
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only
from fedpower.protocol.schedule import Schedule
from fedpower.protocol.solvers.drift import DriftCorrected
from fedpower.protocol.solvers.gains import Gains
from fedpower.protocol.solvers.shared import (
    Participation,
    SiloSampler,
    Solution,
    align,
    enrol,
    mean_trace,
    pooled_columns,
    present,
    rank_for,
    weighted_sum,
)
from fedpower.protocol.study import NoiseLaw, Weights, masses

Array = NDArray[np.float64]
Reference = Literal["first", "active", "broadcast"]
Shift = Callable[[Mapping[str, int], int], float]
"""From the silos' sizes and the number of local steps to the c of A + cI."""
Floor = Callable[[Mapping[str, int]], float]
Noise = Callable[[Mapping[str, int], float], NoiseLaw]
"""From the sizes of the silos in a product and the norm of its centre to the law of the pooled noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSettings:
    """How to iterate."""

    n_features: int
    rank: int | float
    iteration_rank: int
    schedule: Schedule = field(default_factory=Schedule)
    n_steps: int | None = None
    tol: float = 0.0
    max_rounds: int | None = None
    alignment: Alignment = "procrustes"
    reference: Reference = "first"
    n_participants: int | None = None
    participation: Participation = "sampled"
    center: bool = False
    shift: Shift | None = None
    floor: Floor | None = None
    corrected: bool = False
    noise: Noise | None = None
    weights: Weights = "rows"
    gains: Gains | None = None

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


def fedpower(settings: PowerSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` of the federated power method [FP Algs. 1–3]."""
    sizes = yield from enrol()
    center, gains, heard = yield from pooled_columns(
        masses(sizes, settings.weights), center=settings.center, gains=settings.gains
    )
    sizes = {name: sizes[name] for name in heard}
    if settings.floor is not None and settings.tol > 0:
        settings = replace(settings, tol=max(settings.tol, settings.floor(sizes)))
    if settings.corrected:
        return (yield from _corrected(settings, rng, sizes, center, gains))
    iteration = _Iteration(settings, rng, sizes, center, gains)
    if not isinstance(settings.rank, float):
        start = orth(rng.standard_normal((settings.n_features, settings.iteration_rank)))
        return (yield from iteration.run(start, settings.rank))
    width = min(settings.n_features, 16)
    start = orth(rng.standard_normal((settings.n_features, width)))
    while True:
        trusted = width if width == settings.n_features else width // 2
        solution = yield from iteration.run(start, trusted, fraction=settings.rank)
        if solution.rank <= trusted or width == settings.n_features:
            return solution
        width = min(2 * width, settings.n_features)
        fresh = rng.standard_normal((settings.n_features, width - solution.basis.shape[1]))
        start = orth(np.hstack([solution.basis, fresh]))


def _corrected(
    settings: PowerSettings,
    rng: np.random.Generator,
    sizes: dict[str, int],
    center: Array | None,
    gains: Array | None,
) -> Exchange:
    assert not isinstance(settings.rank, float)
    shift = settings.shift
    drift = DriftCorrected(
        sizes,
        masses(sizes, settings.weights),
        rank=settings.rank,
        local_steps=next(settings.schedule.steps()),
        alignment=settings.alignment,
        center=center,
        gains=gains,
        shift=0.0 if shift is None else shift(sizes, 2),
        tol=settings.tol,
        n_steps=settings.n_steps,
        max_rounds=settings.max_rounds,
        noise=settings.noise,
    )
    start = orth(rng.standard_normal((settings.n_features, settings.iteration_rank)))
    return (yield from drift.run(start))


class _Iteration:
    """The loop of [FP Alg. 2] and what it carries from round to round."""

    def __init__(
        self,
        settings: PowerSettings,
        rng: np.random.Generator,
        sizes: dict[str, int],
        center: Array | None,
        gains: Array | None,
    ) -> None:
        self.settings = settings
        self.sizes = sizes
        self.mass = masses(sizes, settings.weights)
        self.center, self.gains = center, gains
        self.sampler = SiloSampler(
            sizes=self.mass,
            rng=rng,
            n_participants=settings.n_participants,
            participation=settings.participation,
        )
        self.rounds = 0
        self.completeness = 1.0
        self.traces: dict[str, list[float]] = {}
        self.asked: set[str] = set()
        self.answered: set[str] = set()

    def run(self, start: Array, rank: int, fraction: float | None = None) -> Exchange:
        settings = self.settings
        basis, step, change, converged = start, 0, float("nan"), False
        product, shift = start, 0.0
        schedule_steps = settings.schedule.steps()
        last = settings.n_steps if settings.n_steps is not None else settings.schedule.last_step
        while last is None or step < last:
            stop = next(schedule_steps, None)
            is_round = stop is not None and (last is None or stop <= last)
            step_to = stop if stop is not None and is_round else last
            assert step_to is not None
            shift = self._shift(step_to - step)
            opened = yield self._ask(basis, step_to - step, step_to, shift, draw=is_round)
            before, step = basis, step_to
            product, output, inner = self._aggregate(basis, opened, is_round)
            basis = orth(output)
            values, vectors = ritz_pairs(basis, product, shift)
            change = sin_theta(before, vectors[:, : _significant(values + shift, rank)])
            opened.notes["change"] = change
            self.rounds += 1
            converged = change <= settings.tol
            if converged and settings.tol > 0:
                break
            if settings.max_rounds is not None and self.rounds >= settings.max_rounds:
                break
        total = mean_trace(self.traces, self.mass)
        law = self._law(opened)
        if law is not None and not law.once:  # its singular values are above all of its noise's
            values = eigenvalues(inner)
        return Solution(
            basis=basis,
            values=values,
            vectors=vectors,
            rank=rank if fraction is None else rank_for(fraction, values, total),
            total_variance=total,
            center=self.center,
            sizes=present(self.sizes, self.asked, self.answered),
            n_steps=step,
            change=change,
            converged=converged,
            completeness=self.completeness,
            law=law,
            gains=self.gains,
        )

    def _law(self, opened: Round) -> NoiseLaw | None:
        """Return the law of the noise of the last pooled product; None without noise."""
        if self.settings.noise is None:
            return None
        norm = 0.0 if self.center is None else float(np.linalg.norm(self.center))
        heard = {name: size for name, size in self.sizes.items() if name in opened.answers}
        return self.settings.noise(heard, norm)

    def _ask(self, basis: Array, n_local_steps: int, step: int, shift: float, draw: bool) -> Ask:
        settings = self.settings
        at_silo = settings.reference == "broadcast"
        always = next(iter(self.sizes)) if settings.reference == "first" else None
        return Ask(
            body=AskSteps(
                basis=read_only(basis),
                n_local_steps=n_local_steps,
                center=self.center,
                shift=shift,
                align=settings.alignment if at_silo else None,
                gains=self.gains,
            ),
            silos=self.sampler.draw(always) if draw else self.sampler.asked(always),
            enough=self.sampler.enough,
            step=step,
        )

    def _aggregate(self, broadcast: Array, opened: Round, is_round: bool) -> tuple[Array, Array, Array]:
        """Return the pooled product and what the next basis is the ``orth`` of [FP Alg. 2, 11–12]."""
        answers: dict[str, LocalSteps] = opened.answers
        self.asked.update(opened.asked)
        self.answered.update(answers)
        weights = self.sampler.weights(answers)
        asked = sum(self.sizes[name] for name in opened.asked)
        heard = sum(self.sizes[name] for name in answers)
        if self.sampler.enough is None:
            self.completeness = min(self.completeness, heard / asked)
        bases = {name: broadcast if a.basis is None else a.basis for name, a in answers.items()}
        products, spread = self._align(broadcast, bases, {n: a.product for n, a in answers.items()})
        reported = [a.misalignment for a in answers.values() if a.misalignment is not None]
        opened.notes["misalignment"] = max([spread, *reported])
        for name, answer in answers.items():
            if answer.total_variance is not None:
                self.traces.setdefault(name, []).append(answer.total_variance)
        product = weighted_sum(products, weights)
        turned, _ = self._align(broadcast, bases, bases)
        inner = weighted_sum({n: compressed(turned[n], products[n]) for n in products}, weights)
        if is_round:
            return product, product, inner
        local = {name: orth(local_product) for name, local_product in products.items()}
        aligned, _ = self._align(broadcast, local, local)
        return product, weighted_sum(aligned, weights), inner

    def _align(
        self, broadcast: Array, bases: dict[str, Array], matrices: dict[str, Array]
    ) -> tuple[dict[str, Array], float]:
        """Return ``matrices`` rotated by the D of their ``bases``, and ρ_t [FP eqs. 3.2, 3.3]."""
        first = next(iter(self.sizes))
        if self.settings.reference == "broadcast":
            reference = broadcast
        else:  # the first silo; any that answered where it did not
            reference = bases.get(first, next(iter(bases.values())))
        return align(bases, matrices, reference=reference, alignment=self.settings.alignment)

    def _shift(self, n_local_steps: int) -> float:
        shift = self.settings.shift
        return 0.0 if shift is None else shift(self.sizes, n_local_steps)


def _significant(values: Array, rank: int) -> int:
    """Return how many of the leading ``rank`` values stand above rounding, one at least."""
    floor = values[0] * values.size * 64 * np.finfo(np.float64).eps
    return max(1, int((values[:rank] > floor).sum()))
