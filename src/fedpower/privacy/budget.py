"""How a study's (ε, δ) at one silo is divided among the queries that it lists, and what each costs."""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fedpower.errors import InputError
from fedpower.privacy.accounting import NoiseMode, delta_with_distance, mu_of, noise_multiplier
from fedpower.privacy.noise import TV_PER_INTEGER
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    Noise,
    Sensitivity,
    clipped_sensitivity,
    mean_sensitivity,
    noise_for,
    of_moment,
    of_reals,
    paper_sensitivity,
    product_sensitivity,
    rounding_slack,
    summary_sensitivity,
    summary_size,
)
from fedpower.sums.lattice import SIDE
from fedpower.sums.survey import STAGES

_LARGEST_EPSILON = 60.0
"""A larger ε promises nothing, and e^ε times the sampler's 2⁻¹²⁰ would no longer be small."""

SMALLEST_EPSILON = 1e-4
"""A smaller ε leaves nothing but noise, and is within what accounting may be off by."""

FREE_ORDER_ROWS = 2 * 2**16
PANEL_ROWS = 128
_CENTRING = 10

MOST_ROWS = 64
"""So many rows a person may have on average where products are summed in float64 (`rows.units`)."""

MOMENT, MEAN, PRODUCT, SCORES = "moment", "mean", "product", "scores"
"""Labels of queries; those of stages are their kinds, and clipped products have a number."""


class QueryTerms(NamedTuple):
    """One query of a study: its label, how many numbers answer it, its share of μ², how often it is asked."""

    label: str
    size: int
    share: float
    times: int = 1


class Price(NamedTuple):
    """What one release costs: its Gaussian-DP parameter, and its part of δ."""

    mu: float
    slack_delta: float

    @property
    def multiplier(self) -> float:
        return math.nextafter(1.0 / self.mu, math.inf)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The price list of a private study, the same for every silo and known to all."""

    mode: NoiseMode | Literal["clipped"]
    epsilon: float
    delta: float
    queries: tuple[QueryTerms, ...]
    n_features: int
    iteration_rank: int = 1
    n_steps: int = 1
    center: bool = False
    n_sharing: int | None = None
    colluders: int = 0
    mean_weight: float = MEAN_WEIGHT
    per_unit: int = 0
    slack_delta: float = field(init=False, repr=False, compare=False)
    """The part of δ that pays for how far all releases together are from the ideal ones."""
    total_mu: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Root finders take milliseconds: found once, not at every release.
        if not SMALLEST_EPSILON <= self.epsilon <= _LARGEST_EPSILON:
            raise InputError(
                f"epsilon must be from {SMALLEST_EPSILON:g} to {_LARGEST_EPSILON:g}, or inf "
                f"for no privacy, got {self.epsilon:g}"
            )
        slack = delta_with_distance(0.0, self.epsilon, self.distance)
        if self.delta > 0 >= self.delta - slack:
            raise InputError(
                f"delta must exceed {slack:.1g} to release so many numbers at epsilon={self.epsilon:g}, "
                f"got {self.delta:g}"
            )
        object.__setattr__(self, "slack_delta", slack)
        total = mu_of(self.epsilon, self.left_delta)
        object.__setattr__(self, "total_mu", total)
        if self.mode == "paper":  # the noise of [FP Thm 2], as the share that its products really cost
            rank = self.iteration_rank
            printed = noise_multiplier("paper", epsilon=self.epsilon, delta=self.delta, n_steps=self.n_steps)
            printed *= paper_sensitivity(1, rank) / product_sensitivity(1, rank)
            shares = {PRODUCT: (printed * total) ** -2}
            listed = (terms._replace(share=shares.get(terms.label, terms.share)) for terms in self.queries)
            object.__setattr__(self, "queries", tuple(listed))

    @property
    def left_delta(self) -> float:
        return self.delta - self.slack_delta

    @functools.cached_property
    def size(self) -> int:
        return sum(terms.size * terms.times for terms in self.queries)

    @property
    def distance(self) -> float:
        return self.size * (1 if self.n_sharing is None else self.n_sharing + 1) * TV_PER_INTEGER

    def terms(self, label: str) -> QueryTerms | None:
        """Return the terms of a query; None where the study lists none of that label."""
        return next((terms for terms in self.queries if terms.label == label), None)

    def share(self, *labels: str) -> float:
        """Return the share of μ² that queries of these labels have together."""
        return math.fsum(terms.share * terms.times for terms in self.queries if terms.label in labels)

    def mu(self, *labels: str) -> float:
        """Return what all queries of these labels cost together."""
        return self.total_mu * math.sqrt(self.share(*labels))

    @property
    def study_mu(self) -> float:
        return self.mu(*(terms.label for terms in self.queries))

    def price(self, label: str) -> Price:
        """Return what one release costs: its share of μ², and of the slack by its length."""
        terms = self.terms(label)
        assert terms is not None, "a query is one of the study's"
        # Shares add up to 1 but for rounding, which is taken off.
        mu = self.total_mu * math.sqrt(terms.share) * (1 - 2.0**-48)
        return Price(mu, self.slack_delta * (terms.size / self.size))

    def noise(self, label: str, sensitivity: Sensitivity, sizes: tuple[int, ...]) -> Noise:
        """Return what a silo adds to the answer to a query, in a sum over silos of these sizes."""
        colluders = None if self.n_sharing is None else self.colluders
        return noise_for(sensitivity, self.price(label).multiplier, sizes, colluders)

    def moment_noise(self, sizes: tuple[int, ...]) -> Noise:
        """Return what a silo adds to its moment."""
        colluders = None if self.n_sharing is None else self.colluders
        return noise_for(self._moment_moved, self._moment_multiplier, sizes, colluders)

    @functools.cached_property
    def _moment_moved(self) -> Sensitivity:
        weight = self.mean_weight if self.center else 0.0
        return of_moment(self.n_features, mean_weight=weight, per_unit=self.per_unit)

    @functools.cached_property
    def _moment_multiplier(self) -> float:
        return (
            self.price(MOMENT).multiplier
            if self.has_moment
            else math.nextafter(1.0 / self.total_mu, math.inf)
        )

    @property
    def with_trace(self) -> bool:
        return self.mode in ("moment", "clipped") or self.iteration_rank > 1

    @property
    def has_moment(self) -> bool:
        return self.terms(MOMENT) is not None

    def sensitivity(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the sensitivity of a silo's moment or product, rounding of float64 sums included."""
        if self.mode in ("moment", "clipped"):  # of the moment that a warm start begins with
            alone = summary_sensitivity(n_rows, with_mean=self.center, mean_weight=self.mean_weight)
            return alone * self._most
        exact = product_sensitivity(n_rows, self.iteration_rank) * self._most
        return (exact + self._slack(n_rows, self.iteration_rank + 1)) * (1.0 + center_norm) ** 2

    def product_sensitivity(
        self, n_rows: int, center_norm: float = 0.0, width: int | None = None
    ) -> Sensitivity:
        """Return that of the product and the trace that ``step`` and ``paper`` release."""
        columns = self.iteration_rank if width is None else width
        return of_reals(
            self.sensitivity(n_rows, center_norm),
            self.n_features * columns + int(self.with_trace),
            largest=2.0 * (1.0 + center_norm) ** 2,
            n_rows=n_rows,
        )

    def mean_sensitivity(self, n_rows: int) -> Sensitivity:
        """Return that of the mean row that ``step`` and ``paper`` release by itself."""
        moved = mean_sensitivity(n_rows) * self._most + self._slack(n_rows, 1)
        return of_reals(moved, self.n_features, largest=2.0, n_rows=n_rows)

    @property
    def _most(self) -> int:
        return max(1, self.per_unit)

    def std(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the noise of what a silo of so many rows noises by itself, in units of the bound."""
        if self.mode in ("moment", "clipped"):
            alone = noise_for(self._moment_moved, self._moment_multiplier, (n_rows,))
            return alone.stds[0] / (n_rows * float(SIDE) ** 2)
        noise = self.noise(PRODUCT, self.product_sensitivity(n_rows, center_norm), (n_rows,))
        return noise.stds[0]

    def spectral_edge(self, n_rows: int) -> float:
        """Return τ√(2d): how negative an eigenvalue the noise of a noised moment can make."""
        return self.std(n_rows) * math.sqrt(2.0 * self.n_features)

    def _slack(self, n_rows: int, columns: int) -> float:
        n_rows *= MOST_ROWS if self.per_unit else 1
        longest = _CENTRING * longest_sum(n_rows, self.n_features)
        return rounding_slack(n_rows, self.n_features, iteration_rank=columns, longest_sum=longest)


def longest_sum(n_rows: int, n_features: int) -> int:
    """Return L, through how many additions a term of a product or of a mean of s rows passes."""
    if n_rows <= FREE_ORDER_ROWS:
        return n_rows
    panel = max(1, min(PANEL_ROWS, 2**23 // n_features))
    return FREE_ORDER_ROWS + -(-(n_rows - FREE_ORDER_ROWS) // panel)


# --- how it is divided, from public facts ------------------------------------------------------------

_MOST = (0.05, 0.03, 0.02, 0.08, 0.02)
_LEAST = (0.01, 0.01, 0.005, 0.02, 0.005)
_GOAL = (0.002, 0.002, 0.002, 0.01, 0.002)
_COARSE = 0.05
"""Octaves and bins get twice the most where a count's noise would be more than this share of the rows."""

Shares = tuple[float, float, float, float, float]
"""Of μ², for each of `STAGES`; 0 where one is not asked."""


def shares_of(*, n_rows: int | None, n_features: int, n_open: int, mu: float, n_noises: int = 1) -> Shares:
    """Return what each stage of preparation may spend of μ², from public numbers."""
    counts = math.sqrt(2.0 * n_open)
    moved = (counts, counts, counts, 2.0 * math.sqrt(n_features), math.sqrt(2.0))
    shares = []
    for kind, length, goal, least, most in zip(STAGES, moved, _GOAL, _LEAST, _MOST, strict=True):
        share = most
        if n_rows is not None and length:
            wanted = length / (n_rows * mu)
            coarse = wanted * math.sqrt(n_noises / most) > _COARSE
            if kind in ("octaves", "bins") and coarse:
                share = 2.0 * most
            else:
                share = min(max((wanted / goal) ** 2, least), most)
        # To three digits, so that a study says it as it is.
        shares.append(float(f"{share:.3g}") if length else 0.0)
    return (shares[0], shares[1], shares[2], shares[3], shares[4])


def scores_share(scores_epsilon: float, epsilon: float, delta: float) -> float:
    """Return the share of μ² with which counts of scores alone cost ``scores_epsilon`` of ``epsilon``."""
    share = (mu_of(scores_epsilon, delta) / mu_of(epsilon, delta)) ** 2
    unit = 10.0 ** (math.floor(math.log10(share)) - 2)
    return float(f"{math.floor(share / unit) * unit:.3g}")


CLIP = 0.5
"""α over √(E‖Zᵀx‖²): small enough that noise falls by more than clipping takes from the
signal."""

_WARM_SHARE = 0.3
_MEAN_SHARE = 0.05
_WARM_STEPS = (2.0, 2.0, 2.0, 1.5, 1.0, 1.0)
_COLD_STEPS = (2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
"""Widths of the bases, in units of k."""

_CAREFUL_SHARE = 0.4
_CAREFUL_STEPS = (2.0, 2.0, 2.0, 2.0, 1.5, 1.5, 1.0, 1.0)
_CAREFUL_BELOW = 1.5
"""Where the moment alone would show the weakest direction less clearly than this, it gets more, and wide
bases more steps: so that a direction that it hardly shows is seldom lost."""

_COLD_BELOW = 0.7
"""Where the moment alone would show the weakest direction less clearly than this, steps start cold."""

_WIDEST_WARM = 8192
"""Beyond so many columns the moment is not kept easily, and steps start cold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How the budget of clipped iterates is divided."""

    moment_share: float
    mean_share: float
    widths: tuple[int, ...]

    @property
    def warm(self) -> bool:
        return self.moment_share > 0

    def queries(self, n_features: int, *, center: bool) -> tuple[QueryTerms, ...]:
        """Return what is asked, in order."""
        listed: list[QueryTerms] = []
        if self.warm:
            size = summary_size(n_features, with_mean=center)
            listed.append(QueryTerms(MOMENT, size, self.moment_share))
        if self.mean_share:
            listed.append(QueryTerms(MEAN, n_features, self.mean_share))
        share = (1.0 - self.moment_share - self.mean_share) / len(self.widths)
        for number, width in enumerate(self.widths, start=1):
            listed.append(QueryTerms(f"{PRODUCT} {number}", n_features * width + 1, share))
        return tuple(listed)


def clarity(*, n_features: int, rank: int, n_rows: int, multiplier: float, energy: float) -> float:
    """Return how clearly a moment noised with the whole budget shows the weakest of k directions."""
    rest = (1.0 - energy) / max(n_features - rank, 1)
    gap = max(energy / rank - rest, 0.0)
    return gap * n_rows / (multiplier * math.sqrt(n_features))


def usual_energy(n_features: int, rank: int) -> float:
    """Return what is supposed of the leading directions where nobody guesses: 4k/d, at most a half."""
    return min(4.0 * rank / n_features, 0.5)


def predicted_error(
    *, n_features: int, rank: int, n_rows: int, multiplier: float, energy: float, design: Design | None
) -> float:
    """Return about the sine of the largest angle between found and true directions."""
    seen = clarity(n_features=n_features, rank=rank, n_rows=n_rows, multiplier=multiplier, energy=energy)
    if seen == 0:
        return 1.0
    if design is None:
        return 1.0 if seen <= 1.0 else min(1.0, (1.0 + math.sqrt(rank / n_features)) / seen)
    width = design.widths[-1]
    held = min(energy + (width - rank) * (1.0 - energy) / n_features, 1.0)
    clip = min(CLIP * math.sqrt(held), 1.0)
    gain = (_kept(width) / clipped_sensitivity(clip, width)) ** 2
    steps = len(design.widths)
    counted = steps - 1 if design.warm else max(steps - 2, 1)
    per_step = (1.0 - design.moment_share - design.mean_share) / steps
    precision = design.moment_share + counted * per_step * gain
    # The first basis must be found at all: by the moment's share, or step by step.
    if seen <= (0.7 if design.warm else 0.5):
        return 1.0
    return min(1.0, (1.0 + math.sqrt(width / n_features)) / (seen * math.sqrt(precision)))


def _kept(width: int) -> float:
    mean = math.exp(math.lgamma((width + 1) / 2.0) - math.lgamma(width / 2.0))
    return CLIP * mean * math.sqrt(2.0 / width)


_CLEAR_GAIN = 0.95
"""Clipping is taken where the predicted error is below so much of the moment's."""

_FOUND = 0.8
"""And below this: where neither would find the components, the moment loses no more, and tells more."""


def predicted_gain(
    *, n_features: int, rank: int, n_rows: int | None, multiplier: float, energy: float
) -> bool:
    """Return whether clipped products are predicted to be clearly more accurate than the moment."""
    if n_rows is None:
        return False
    facts: dict[str, Any] = {
        "n_features": n_features, "rank": rank, "n_rows": n_rows, "multiplier": multiplier, "energy": energy
    }  # fmt: skip
    clipped = predicted_error(design=choose_design(center=False, **facts), **facts)
    moment = predicted_error(design=None, **facts)
    return clipped < min(_CLEAR_GAIN * moment, _FOUND)


def choose_design(
    *,
    n_features: int,
    rank: int,
    center: bool,
    n_rows: int | None,
    multiplier: float,
    energy: float | None,
    width: int | None = None,
) -> Design:
    """Return how a budget is best divided, from public facts."""
    guess = usual_energy(n_features, rank) if energy is None else energy
    cold = n_features > _WIDEST_WARM
    share: float = _WARM_SHARE
    steps: tuple[float, ...] = _WARM_STEPS
    if n_rows is not None:
        facts = {"n_features": n_features, "rank": rank, "n_rows": n_rows}
        seen = clarity(multiplier=multiplier, energy=guess, **facts)
        cold |= seen < _COLD_BELOW
        if seen < _CAREFUL_BELOW:
            share, steps = _CAREFUL_SHARE, _CAREFUL_STEPS
    if cold:
        share, steps = 0.0, _COLD_STEPS
    widths = tuple(
        min(n_features, max(rank, round(step * rank)) if width is None else width) for step in steps
    )
    return Design(moment_share=share, mean_share=_MEAN_SHARE if cold and center else 0.0, widths=widths)
