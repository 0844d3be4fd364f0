"""How a study's (ε, δ) at one silo is divided among the queries that it lists, and what each costs."""

import functools
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedpower.errors import InputError
from fedpower.privacy.accounting import NoiseMode, delta_with_distance, mu_of, noise_multiplier
from fedpower.privacy.noise import TV_PER_INTEGER
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    Moved,
    Noise,
    Sensitivity,
    clipped_sensitivity,
    moved_by_row,
    noise_for,
    of_moment,
    of_reals,
    rounding_slack,
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
            printed *= moved_by_row("paper", rank) / moved_by_row("product", rank)
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
        return noise_for(sensitivity, self.price(label).multiplier, sizes, self._known)

    def moment_noise(self, sizes: tuple[int, ...]) -> Noise:
        """Return what a silo adds to its moment, or would add if it were all that the study asks for."""
        return noise_for(*self._moment, sizes, self._known)

    @property
    def _known(self) -> int | None:
        return None if self.n_sharing is None else self.colluders

    @property
    def _moment(self) -> tuple[Sensitivity, float]:
        weight = self.mean_weight if self.center else 0.0
        listed = self.terms(MOMENT) is not None
        multiplier = (
            self.price(MOMENT).multiplier if listed else math.nextafter(1.0 / self.total_mu, math.inf)
        )
        return of_moment(self.n_features, mean_weight=weight, per_unit=self.per_unit), multiplier

    @property
    def noises_steps(self) -> bool:
        """Whether products of float64 are noised, one by one."""
        return self.mode in ("step", "paper")

    @property
    def with_trace(self) -> bool:
        return not self.noises_steps or self.iteration_rank > 1

    def product_sensitivity(
        self, n_rows: int, center_norm: float = 0.0, width: int | None = None
    ) -> Sensitivity:
        """Return that of the product and the trace that ``step`` and ``paper`` release, with its rounding."""
        rank = self.iteration_rank
        longest = (1.0 + center_norm) ** 2
        return of_reals(
            self._moved("product", n_rows, rank, rank + 1) * longest,
            self.n_features * (rank if width is None else width) + int(self.with_trace),
            largest=2.0 * longest,
            n_rows=n_rows,
        )

    def mean_sensitivity(self, n_rows: int) -> Sensitivity:
        """Return that of the mean row that ``step`` and ``paper`` release by itself."""
        return of_reals(self._moved("mean", n_rows, 1, 1), self.n_features, largest=2.0, n_rows=n_rows)

    def _moved(self, what: Moved, n_rows: int, rank: int, columns: int) -> float:
        ideal = moved_by_row(what, rank) / n_rows * max(1, self.per_unit)
        added = n_rows * (MOST_ROWS if self.per_unit else 1)
        longest = _CENTRING * longest_sum(added, self.n_features)
        return ideal + rounding_slack(added, self.n_features, iteration_rank=columns, longest_sum=longest)

    def std(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the noise of what a silo of so many rows noises by itself, in units of the bound."""
        if self.noises_steps:
            return self.noise(PRODUCT, self.product_sensitivity(n_rows, center_norm), (n_rows,)).stds[0]
        return noise_for(*self._moment, (n_rows,)).stds[0] / (n_rows * float(SIDE) ** 2)

    def spectral_edge(self, n_rows: int) -> float:
        """Return τ√(2d): how negative an eigenvalue the noise of a noised moment can make."""
        return self.std(n_rows) * math.sqrt(2.0 * self.n_features)


def longest_sum(n_rows: int, n_features: int) -> int:
    """Return L, through how many additions a term of a product or of a mean of s rows passes."""
    if n_rows <= FREE_ORDER_ROWS:
        return n_rows
    panel = max(1, min(PANEL_ROWS, 2**23 // n_features))
    return FREE_ORDER_ROWS + -(-(n_rows - FREE_ORDER_ROWS) // panel)


# --- how it is divided, from public facts ------------------------------------------------------------

_STAGE_SHARES = {
    "octaves": (0.01, 0.05, 0.002),
    "bins": (0.01, 0.03, 0.002),
    "zoom": (0.005, 0.02, 0.002),
    "means": (0.02, 0.08, 0.01),
    "norms": (0.005, 0.02, 0.002),
}
"""The least and the most of μ² that a stage gets, and the error, as a share of the rows, that is enough."""

_COARSE = 0.05
"""Octaves and bins get twice the most where a count's noise would be more than this share of the rows."""

Shares = tuple[float, float, float, float, float]
"""Of μ², for each of `STAGES`; 0 where one is not asked."""


def shares_of(*, n_rows: int | None, n_features: int, n_open: int, mu: float, n_noises: int = 1) -> Shares:
    """Return what each stage of preparation may spend of μ², from public numbers."""
    counts = math.sqrt(2.0 * n_open)
    moved = (counts, counts, counts, 2.0 * math.sqrt(n_features), math.sqrt(2.0))
    shares = []
    for kind, length in zip(STAGES, moved, strict=True):
        least, most, goal = _STAGE_SHARES[kind]
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
_WARM_STEPS: tuple[float, ...] = (2.0, 2.0, 2.0, 1.5, 1.0, 1.0)
_COLD_STEPS: tuple[float, ...] = (2.0,) * 6
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


_CLEAR_GAIN = 0.95
"""Clipping is taken where the predicted error is below so much of the moment's."""

_FOUND = 0.8
"""And below this: where neither would find the components, the moment loses no more, and tells more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a fit can show, from public facts; ``energy`` is the leading directions' share of the variance."""

    n_features: int
    rank: int
    n_rows: int | None
    multiplier: float
    energy: float | None = None

    def clarity(self) -> float:
        """Return how clearly a moment noised with the whole budget shows the weakest of k directions."""
        energy = self._energy
        rest = (1.0 - energy) / max(self.n_features - self.rank, 1)
        gap = max(energy / self.rank - rest, 0.0)
        return gap * (self.n_rows or 0) / (self.multiplier * math.sqrt(self.n_features))

    @property
    def _energy(self) -> float:
        """At most a half, and 4k/d, where nobody guesses."""
        return min(4.0 * self.rank / self.n_features, 0.5) if self.energy is None else self.energy

    def error(self, design: Design | None) -> float:
        """Return about the sine of the largest angle between found and true directions."""
        seen, d = self.clarity(), self.n_features
        if design is None:
            return 1.0 if seen <= 1.0 else min(1.0, (1.0 + math.sqrt(self.rank / d)) / seen)
        # The first basis must be found at all: by the moment's share, or step by step.
        if seen <= (0.7 if design.warm else 0.5):
            return 1.0
        width, steps = design.widths[-1], len(design.widths)
        held = min(self._energy + (width - self.rank) * (1.0 - self._energy) / d, 1.0)
        clip = min(CLIP * math.sqrt(held), 1.0)
        gain = (_kept(width) / clipped_sensitivity(clip, width)) ** 2
        counted = steps - 1 if design.warm else max(steps - 2, 1)
        per_step = (1.0 - design.moment_share - design.mean_share) / steps
        precision = design.moment_share + counted * per_step * gain
        return min(1.0, (1.0 + math.sqrt(width / d)) / (seen * math.sqrt(precision)))

    def gains_by_clipping(self) -> bool:
        """Return whether clipped products are predicted to be clearly more accurate than the moment."""
        if self.n_rows is None:
            return False
        return self.error(self.design(center=False)) < min(_CLEAR_GAIN * self.error(None), _FOUND)

    def design(self, *, center: bool, width: int | None = None) -> Design:
        """Return how a budget is best divided among clipped products."""
        share, steps = _WARM_SHARE, _WARM_STEPS
        cold = self.n_features > _WIDEST_WARM
        if self.n_rows is not None:
            seen = self.clarity()
            cold |= seen < _COLD_BELOW
            if seen < _CAREFUL_BELOW:
                share, steps = _CAREFUL_SHARE, _CAREFUL_STEPS
        if cold:
            share, steps = 0.0, _COLD_STEPS
        widths = tuple(
            min(self.n_features, max(self.rank, round(step * self.rank)) if width is None else width)
            for step in steps
        )
        return Design(moment_share=share, mean_share=_MEAN_SHARE if cold and center else 0.0, widths=widths)


def _kept(width: int) -> float:
    mean = math.exp(math.lgamma((width + 1) / 2.0) - math.lgamma(width / 2.0))
    return CLIP * mean * math.sqrt(2.0 / width)
