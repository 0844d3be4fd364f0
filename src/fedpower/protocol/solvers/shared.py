"""What solvers share: how a run opens, who takes part, averages over silos, rounds of steps, the solution."""

import math
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import numpy as np
from msgspec import Meta

from fedpower.exceptions import InputError
from fedpower.linalg import ALIGNMENTS, Alignment, Array, misalignment
from fedpower.options import Upload
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import AskMoment, AskSteps, Enrol, LocalSteps, MomentPart, read_only
from fedpower.protocol.pooled import Clipping, Gains, Pooled, fixed, unit_variances, varying
from fedpower.protocol.query import norm_of
from fedpower.protocol.solvers.angles import Directions
from fedpower.protocol.study import NOISE_SHARE, NoiseLaw, Study, masses, noise_law, pooled_std
from fedpower.rules.codebook import CodeBook
from fedpower.toml import Part

Rank = int | float | Literal["auto"]
"""k; a fraction of variance; or those that are determined (`Angles.n_kept`)."""


class ScoreRecord(Part, frozen=True):
    """Counts of rows on a grid over their scores, which reaches as far to either side of 0."""

    reach: tuple[float, float]
    noise_std: float
    counts: Annotated[dict[str, list[list[float]]], Meta(min_length=1)]


POOLED = "all silos"
"""The name of counts of which only the sum over silos is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What a solver ends with; one that does not iterate leaves its steps as they are."""

    basis: Array
    values: Array
    vectors: Array
    rank: int
    total_variance: float
    center: Array | None
    sizes: dict[str, int]
    n_steps: int = 1
    change: float = 0.0
    converged: bool = True
    spectrum: Array | None = None
    law: NoiseLaw | None = None
    last_values: Array | None = None
    directions: Directions | None = None
    clipping: Clipping | None = None
    remarks: tuple[str, ...] = ()
    gains: Array | None = None
    code_book: CodeBook | None = None
    pooled: Pooled | None = None
    scores: ScoreRecord | None = None
    hides_silos: bool = False
    """Whether all but the scores is a function of exact sums over all silos [proof, section 8]."""


def rank_for(fraction: float, values: Array, total: float) -> int:
    """Return the least k whose leading values exceed ``fraction`` of the total variance."""
    kept = np.maximum(values, 0.0)
    cumulative = np.cumsum(kept) / total if total > 0 else np.ones_like(kept)
    return min(int(np.searchsorted(cumulative, fraction, side="right")) + 1, kept.size)


def shares(names: Iterable[str], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the weight s_i/Σs of each of ``names``; they add up to one."""
    picked = {name: sizes[name] for name in names}
    total = sum(picked.values())
    return {name: size / total for name, size in picked.items()}


def weighted_sum(matrices: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """Return Σ w_i M_i."""
    (first, matrix), *others = matrices.items()
    total = matrix * weights[first] + 0.0  # a sum is never -0
    for name, matrix in others:
        total += weights[name] * matrix
    return np.asarray(total)


def align(
    bases: Mapping[str, Array], matrices: Mapping[str, Array], *, reference: Array, alignment: Alignment
) -> tuple[dict[str, Array], float]:
    """Return ``matrices`` rotated by the D of their ``bases``, and ρ_t [FP eqs. 3.2, 3.3]."""
    turns = {
        name: np.eye(basis.shape[1]) if basis is reference else ALIGNMENTS[alignment](basis, reference)
        for name, basis in bases.items()
    }
    spread = misalignment([bases[name] @ turn for name, turn in turns.items()], reference)
    return {name: matrices[name] @ turn for name, turn in turns.items()}, spread


Participation = Literal["sampled", "first"]


@dataclass(slots=True, kw_only=True)
class SiloSampler:
    """Draws the silos of each round and weighs their answers."""

    sizes: dict[str, int]
    rng: np.random.Generator
    n_participants: int | None = None
    participation: Participation = "sampled"
    drawn: tuple[str, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.n_participants is not None and not 1 <= self.n_participants <= len(self.sizes):
            most = len(self.sizes)
            raise InputError(
                f"n_participants must be between 1 and the {most} silos, got {self.n_participants}"
            )

    @property
    def enough(self) -> int | None:
        """How many answers close a round early; None waits for everyone who was asked."""
        return self.n_participants if self.participation == "first" else None

    def draw(self, always: str | None) -> tuple[str, ...]:
        """Return whom to ask in a new round; ``always`` is asked whether drawn or not."""
        if self.n_participants is None or self.participation == "first":
            return self.asked(always)
        names = list(self.sizes)
        probabilities = np.array([self.sizes[name] for name in names], dtype=np.float64)
        picks = self.rng.choice(len(names), size=self.n_participants, p=probabilities / probabilities.sum())
        self.drawn = tuple(names[pick] for pick in picks)
        return self.asked(always)

    def asked(self, always: str | None) -> tuple[str, ...]:
        """Return the silos of the last draw and ``always``, in the order of the study."""
        if self.drawn is None:
            return tuple(self.sizes)
        wanted = {*self.drawn, *((always,) if always else ())}
        return tuple(name for name in self.sizes if name in wanted)

    def weights(self, answered: Iterable[str]) -> dict[str, float]:
        """Return the weight of each silo that answered; they add up to one."""
        if self.drawn is None:
            return shares(answered, self.sizes)
        times = {name: self.drawn.count(name) for name in answered}
        if not any(times.values()):  # only the reference answered, and it was not drawn
            times = dict.fromkeys(times, 1)
        return shares(times, times)


def enrol() -> Exchange:
    """Return the public number of rows s_i of each silo that answered, by name."""
    opened = yield Ask(body=Enrol())
    return {name: answer.n_rows for name, answer in opened.answers.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverSettings:
    """What a solver needs to know; ``solver`` is the value of `fedpower.options` that users give."""

    study: Study
    rank: Rank
    solver: Any = field(default_factory=Upload)
    standardize: bool = False
    code_book: CodeBook | None = None
    keep_covariance: bool = False
    shortens: bool = False
    pooled_std: float | None = None
    """The pooled noise where one silo stands for all; it follows from the study where all are there."""

    @property
    def method(self) -> str:
        """The name of the solver; clipped products have one that no option names."""
        return "clipped" if self.study.noise == "clipped" else str(self.solver.name)

    @property
    def is_summed(self) -> bool:
        """Whether the solver asks for nothing but the queries of the study."""
        return self.method in ("upload", "clipped")

    @property
    def n_steps(self) -> int | None:
        return self.study.n_steps or self.solver.n_steps

    @property
    def gains(self) -> Gains | None:
        """The gains of products of exact columns; those of a private study are not multiplied."""
        if self.study.is_private:
            return None
        if self.standardize:
            return unit_variances(groups=self.study.groups)
        # A public scale is a choice of units; one that was found is not.
        return None if self.code_book is None else fixed(self.code_book.units)

    def std(self, sizes: Mapping[str, int]) -> float:
        return pooled_std(self.study, sizes) if self.pooled_std is None else self.pooled_std


class Steps:
    """Asks silos for local steps, and counts rounds, steps, traces and who answered."""

    def __init__(
        self,
        settings: SolverSettings,
        sizes: dict[str, int],
        rng: np.random.Generator,
        center: Array | None,
        gains: Array | None,
    ) -> None:
        self.settings, self.sizes, self.study = settings, sizes, settings.study
        self.mass = masses(sizes, self.study.weights)
        self.rng = rng
        self.sampler = SiloSampler(
            sizes=self.mass,
            rng=rng,
            n_participants=settings.solver.n_participants,
            participation=settings.solver.participation,
        )
        self.center, self.gains = center, gains
        self.tol = 0.0 if self.study.noises_steps else settings.solver.tol  # 0 never ends a run early
        if self.tol > 0:
            floor = NOISE_SHARE * settings.std(sizes) * math.sqrt(self.study.n_features)
            self.tol = max(self.tol, floor)
        self.rounds = self.step = 0
        self._traces: dict[str, list[float]] = {}
        self.asked: set[str] = set()
        self.answered: set[str] = set()

    @classmethod
    def opened(
        cls, settings: SolverSettings, sizes: dict[str, int], rng: np.random.Generator
    ) -> Generator[Ask, Round, Self]:
        """Return one for the silos that answer, once their mean and variances are known where need be."""
        study, gains_of = settings.study, settings.gains
        if not study.center and gains_of is None:
            return cls(settings, sizes, rng, None, None)
        mass = masses(sizes, study.weights)
        what = AskMoment(label="mean" if gains_of is None else "variances")
        opened = yield Ask(body=what, silos=tuple(sizes))
        answers: dict[str, MomentPart] = opened.answers
        sizes = {name: sizes[name] for name in answers}
        weights = np.array([mass[name] for name in sizes], dtype=np.float64)
        means = np.array([answer.mean for answer in answers.values()])
        center = read_only(weights @ means / weights.sum()) if study.center else None
        gains = None
        if gains_of is not None:
            variances = np.array([answer.values for answer in answers.values()])
            squares = variances + (means if center is None else means - center) ** 2
            pooled = varying(weights @ squares / weights.sum(), center, sum(sizes.values()))
            gains = read_only(gains_of(pooled))
        return cls(settings, sizes, rng, center, gains)

    @property
    def rounds_left(self) -> int:
        return int(self.settings.solver.max_rounds) - self.rounds

    @property
    def total_variance(self) -> float:
        """Σ w_i tr A_i over the silos that released it (each averaged over its rounds), or NaN."""
        traces = {name: float(np.mean(trace)) for name, trace in self._traces.items() if name in self.mass}
        if not traces:
            return float("nan")
        return sum(share * traces[name] for name, share in shares(traces, self.mass).items())

    def shift(self, n_local_steps: int) -> float:
        """Return by how much noised covariances are shifted: steps then chase no negative eigenvalues."""
        settings = self.settings
        if self.study.noise != "covariance":
            return 0.0
        alone = n_local_steps > 1 and settings.pooled_std is None
        std = max(map(self.study.budget.std, self.sizes.values())) if alone else settings.std(self.sizes)
        return std * math.sqrt(2.0 * self.study.n_features)

    def ask(
        self,
        basis: Array,
        n_local_steps: int = 1,
        *,
        silos: tuple[str, ...] | None = None,
        enough: int | None = None,
        **more: Any,
    ) -> Generator[Ask, Round, Round]:
        """Return the closed round of a question for local steps; `step` is to be where they lead."""
        body = AskSteps(
            basis=read_only(basis), n_local_steps=n_local_steps, center=self.center, gains=self.gains, **more
        )
        closed: Round = yield Ask(
            body=body, silos=tuple(self.sizes) if silos is None else silos, enough=enough, step=self.step
        )
        self.rounds += 1
        answers: dict[str, LocalSteps] = closed.answers
        self.asked.update(closed.asked)
        self.answered.update(answers)
        for name, answer in answers.items():
            if answer.total_variance is not None:
                self._traces.setdefault(name, []).append(answer.total_variance)
        return closed

    def law(self, heard: Iterable[str]) -> NoiseLaw | None:
        """Return the law of the noise of a product of these silos; None without noise."""
        return noise_law(self.study, {name: self.sizes[name] for name in heard}, norm_of(self.center))

    def solution(self, **found: Any) -> Solution:
        """Return the solution over the silos that answered, or were not asked."""
        sizes = {n: s for n, s in self.sizes.items() if n not in self.asked or n in self.answered}
        known: dict[str, Any] = {"sizes": sizes, "total_variance": self.total_variance, "n_steps": self.step}
        return Solution(center=self.center, gains=self.gains, **(known | found))
