"""How a study's (ε, δ) at one silo is divided among the queries that it lists."""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedpower.errors import InputError
from fedpower.privacy.accounting import NoiseMode, delta_with_distance, mu_of, noise_multiplier
from fedpower.privacy.noise import TV_PER_INTEGER
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    Noise,
    Sensitivity,
    mean_sensitivity,
    noise_for,
    of_moment,
    of_reals,
    paper_sensitivity,
    product_sensitivity,
    rounding_slack,
    summary_sensitivity,
    unit_sensitivity,
)
from fedpower.sums.lattice import SIDE

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
            what = "larger one promises nothing"
            if self.epsilon < SMALLEST_EPSILON:
                what = "smaller one leaves nothing but noise"
            raise InputError(
                f"epsilon must be from {SMALLEST_EPSILON:g} to {_LARGEST_EPSILON:g}, or "
                f"inf for no privacy, got {self.epsilon:g}; a {what}"
            )
        slack = delta_with_distance(0.0, self.epsilon, self.distance)
        if self.delta > 0 >= self.delta - slack:
            raise InputError(
                f"delta must exceed {slack:.1g} to release so many numbers at epsilon={self.epsilon:g}, "
                f"got {self.delta:g}; ask for a smaller epsilon"
            )
        object.__setattr__(self, "slack_delta", slack)
        object.__setattr__(self, "total_mu", mu_of(self.epsilon, self.left_delta))

    @property
    def left_delta(self) -> float:
        return self.delta - self.slack_delta

    @property
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
        if self.mode == "paper" and labels == (PRODUCT,):
            return self.price(PRODUCT).mu * math.sqrt(self.n_steps)
        return self.total_mu * math.sqrt(self.share(*labels))

    @property
    def study_mu(self) -> float:
        if self.mode != "paper":
            return self.total_mu
        return math.hypot(self.mu(PRODUCT), self.mu(MEAN))

    def price(self, label: str) -> Price:
        """Return what one release costs: its share of μ², and of the slack by its length."""
        found = self.terms(label)
        assert found is not None, "a query is one of the study's"
        slack = self.slack_delta * (found.size / self.size)
        if self.mode == "paper" and label == PRODUCT:
            return Price(1.0 / self._printed_multiplier, slack)
        # Shares add up to 1 but for rounding, which is taken off.
        return Price(self.total_mu * math.sqrt(found.share) * (1 - 2.0**-48), slack)

    @property
    def _printed_multiplier(self) -> float:
        """The noise of [FP Thm 2] over the sensitivity that a product has."""
        printed = noise_multiplier("paper", epsilon=self.epsilon, delta=self.delta, n_steps=self.n_steps)
        return (
            printed * paper_sensitivity(1, self.iteration_rank) / product_sensitivity(1, self.iteration_rank)
        )

    def noise(self, label: str, sensitivity: Sensitivity, sizes: tuple[int, ...]) -> Noise:
        """Return what a silo adds to the answer to a query, in a sum over silos of these sizes."""
        colluders = None if self.n_sharing is None else self.colluders
        return noise_for(sensitivity, self.price(label).multiplier, sizes, colluders)

    def moment_noise(self, sizes: tuple[int, ...]) -> Noise:
        """Return what a silo adds to its moment."""
        colluders = None if self.n_sharing is None else self.colluders
        return noise_for(self._moment_moved, self._moment_multiplier, sizes, colluders)

    @property
    def _moment_moved(self) -> Sensitivity:
        weight = self.mean_weight if self.center else 0.0
        return of_moment(self.n_features, mean_weight=weight, per_unit=self.per_unit)

    @property
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
            return unit_sensitivity(alone, self._most)
        exact = unit_sensitivity(product_sensitivity(n_rows, self.iteration_rank), self._most)
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
        moved = unit_sensitivity(mean_sensitivity(n_rows), self._most) + self._slack(n_rows, 1)
        return of_reals(moved, self.n_features, largest=2.0, n_rows=n_rows)

    @property
    def _most(self) -> int:
        return max(1, self.per_unit)

    def std(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the noise of what a silo of so many rows noises by itself, in units of the bound."""
        if self.mode in ("moment", "clipped"):
            alone = noise_for(self._moment_moved, self._moment_multiplier, (n_rows,))
            return alone.stds[0] / (n_rows * float(SIDE) ** 2)
        found = self.noise(PRODUCT, self.product_sensitivity(n_rows, center_norm), (n_rows,))
        return found.stds[0]

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
