"""How a study's (ε, δ) at one silo is divided among its releases."""

import math
from dataclasses import dataclass, field
from typing import Literal

from fedpower.errors import InputError
from fedpower.privacy.accounting import NoiseMode, delta_with_distance, mu_of, noise_multiplier
from fedpower.privacy.integer_release import IntegerNoise, integer_noise
from fedpower.privacy.noise import BITS, TV_PER_INTEGER
from fedpower.privacy.preparation import MOST_COUNTS, SCORES, STAGES, TALLY_PARTS, stage_scales
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    mean_sensitivity,
    paper_sensitivity,
    product_sensitivity,
    rounding_slack,
    summary_sensitivity,
    summary_size,
    unit_sensitivity,
)

_LARGEST_EPSILON = 60.0
"""A larger ε promises nothing, and e^ε times the sampler's 2⁻¹²⁰ would no longer be small."""

SMALLEST_EPSILON = 1e-4
"""A smaller ε leaves nothing but noise, and is within what accounting may be off by."""

FREE_ORDER_ROWS = 2 * 2**16
PANEL_ROWS = 128
_CENTRING = 10


MOST_ROWS = 64
"""So many rows a person may have on average where products are summed in float64 (`data.units`)."""

_MOST_CELLS = 24**2
"""Of a grid of scores (`fedpower.sums.score_counts`)."""

MOMENT = "moment"
"""What the sum of the moment is called among several sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one sum of several costs: its Gaussian-DP parameter, and its part of δ."""

    mu: float
    slack_delta: float

    @property
    def multiplier(self) -> float:
        """Noise standard deviation over sensitivity; rounded up."""
        return math.nextafter(1.0 / self.mu, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The price list of a private study, the same for every silo and known to all."""

    mode: NoiseMode | Literal["clipped"]
    epsilon: float
    delta: float
    n_features: int
    iteration_rank: int
    n_steps: int
    center: bool
    n_sharing: int | None = None
    colluders: int = 0
    sums: tuple[tuple[str, int, float], ...] = ()
    preparation: tuple[float, ...] = ()
    n_open: int = 0
    mean_weight: float = MEAN_WEIGHT
    per_unit: int = 0
    scores: float = 0.0
    slack_delta: float = field(init=False, repr=False, compare=False)
    mu: float = field(init=False, repr=False, compare=False)
    total_mu: float = field(init=False, repr=False, compare=False)
    _printed: float = field(init=False, repr=False, compare=False)
    _integers: IntegerNoise | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        # Root finders take milliseconds: found once, not at every release.
        if not SMALLEST_EPSILON <= self.epsilon <= _LARGEST_EPSILON:
            what = "larger one promises nothing"
            if self.epsilon < SMALLEST_EPSILON:
                what = "smaller one leaves nothing but noise"
            raise InputError.about(
                "epsilon",
                must=f"be from {SMALLEST_EPSILON:g} to {_LARGEST_EPSILON:g}, or inf for no privacy",
                got=f"{self.epsilon:g}",
                advice=f"a {what}",
            )
        slack = delta_with_distance(0.0, self.epsilon, self.distance)
        left = self.delta - self.n_releases * slack
        if self.delta > 0 >= left:
            raise InputError.about(
                "delta",
                must="exceed {least:.1g} to release so many numbers at {epsilon:{spent:g}}",
                got=f"{self.delta:g}",
                advice="ask for a smaller epsilon",
                least=self.n_releases * slack,
                spent=self.epsilon,
            )
        terms = {"epsilon": self.epsilon, "delta": self.delta, "n_steps": self.n_steps}
        printed = noise_multiplier("paper", **terms) if self.mode == "paper" else math.nan  # type: ignore[arg-type]
        object.__setattr__(self, "slack_delta", slack)
        whole_mu = mu_of(self.epsilon, left)
        rest = 1.0 - sum(self.preparation) - self.scores
        alone = whole_mu * math.sqrt(rest) / math.sqrt(self.n_steps + int(self.center))
        if self.sums:  # whose shares have those of preparation and of scores
            alone = whole_mu
        elif self.mode == "moment":
            alone = whole_mu * math.sqrt(rest)
        object.__setattr__(self, "total_mu", whole_mu)
        object.__setattr__(self, "mu", alone)
        object.__setattr__(self, "_printed", printed)

    @property
    def n_releases(self) -> int:
        """How many Gaussian releases share the budget; 1 for all sums of an attempt together."""
        counted = int(self._counts_by_itself)
        if self.sums:
            return 1 + counted
        if self.mode == "moment":
            return 1 + sum(share > 0 for share in self.preparation) + counted
        return self.n_steps + int(self.center) + counted

    @property
    def _counts_by_itself(self) -> bool:
        """Whether counts of scores are a release of their own, and not one of the secure sums."""
        return self.scores > 0 and not any(label == SCORES for label, _, _ in self.sums)

    @property
    def scores_mu(self) -> float:
        """What the counts of scores cost; 0 where none are asked for."""
        return self.total_mu * math.sqrt(self.scores)

    @property
    def preparation_mu(self) -> float:
        """What preparation costs, all its stages together; 0 where there is none."""
        return self.total_mu * math.sqrt(sum(self.preparation))

    def stage_mu(self, kind: str) -> float:
        """Return what a stage of preparation costs."""
        if kind == SCORES:
            return self.scores_mu
        return self.total_mu * math.sqrt(self.preparation[STAGES.index(kind)])

    def stage_scales(self, kind: str, side: int, n_asked: int | None = None) -> tuple[int, ...]:
        """Return the noise of a stage's whole numbers, cells having ``side`` for their largest."""
        multiplier = math.nextafter(1.0 / self.stage_mu(kind), math.inf)
        return stage_scales(
            kind,
            multiplier,
            n_features=self.n_features,
            n_open=self.n_open if n_asked is None else n_asked,
            side=side,
            per_unit=self.per_unit,
        )

    @property
    def tally_parts(self) -> int:
        """How much a row of its own counts for in a stage of preparation."""
        return TALLY_PARTS if self.per_unit else 1

    @property
    def with_trace(self) -> bool:
        """Whether tr A leaves with each product."""
        return self.mode in ("moment", "clipped") or self.iteration_rank > 1

    @property
    def size(self) -> int:
        """The most numbers in one release; in all sums of an attempt, where there are several."""
        cells = _MOST_CELLS if self._counts_by_itself else 0
        if self.sums:
            return max(sum(size for _, size, _ in self.sums), cells)
        if self.mode == "moment":
            stages = MOST_COUNTS * max(self.n_open, 2) if self.preparation else 0
            return max(summary_size(self.n_features, with_mean=self.center), stages, cells)
        return max(self.n_features * self.iteration_rank + int(self.with_trace), cells)

    @property
    def distance(self) -> float:
        """Total variation distance of one release from the ideal one."""
        return self.size * (1 if self.n_sharing is None else self.n_sharing + 1) * TV_PER_INTEGER

    @property
    def multiplier(self) -> float:
        """Noise standard deviation over sensitivity, for one release; rounded up."""
        for index, (label, _, _) in enumerate(self.sums):
            if label == MOMENT:
                return self.price_of_sum(index).multiplier
        return math.nextafter(1.0 / self.mu, math.inf)

    def price_of_sum(self, index: int) -> "Price":
        """Return what one of several sums costs: its share of μ², and of the slack by its length."""
        _, size, share = self.sums[index]
        # Shares add up to 1 but for rounding, which is taken off.
        mu = self.mu * math.sqrt(share) * (1 - 2.0**-48)
        return Price(mu=mu, slack_delta=self.slack_delta * (size / self.size))

    @property
    def integers(self) -> IntegerNoise:
        """The noise of a silo's release in ``moment`` mode, whose sums are whole numbers."""
        found = self._integers
        if found is None:  # else every silo asks ten times
            found = integer_noise(
                self.multiplier, with_mean=self.center, mean_weight=self.mean_weight, per_unit=self.per_unit
            )
            object.__setattr__(self, "_integers", found)
        return found

    def sensitivity(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the sensitivity of a silo's release, rounding of float64 sums included."""
        if self.mode in ("moment", "clipped"):  # of the moment that a warm start begins with
            alone = summary_sensitivity(n_rows, with_mean=self.center, mean_weight=self.mean_weight)
            return unit_sensitivity(alone, self._most)
        exact = unit_sensitivity(product_sensitivity(n_rows, self.iteration_rank), self._most)
        return (exact + self._slack(n_rows, self.iteration_rank + 1)) * (1.0 + center_norm) ** 2

    def mean_sensitivity(self, n_rows: int) -> float:
        """Return the sensitivity of the mean row that ``step`` and ``paper`` release by itself."""
        return unit_sensitivity(mean_sensitivity(n_rows), self._most) + self._slack(n_rows, 1)

    @property
    def _most(self) -> int:
        """C; 1 where a row is the unit."""
        return max(1, self.per_unit)

    def std(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the noise's standard deviation at a silo (lattice rounding, ~1e-9, aside)."""
        if self.mode == "paper":
            moved = unit_sensitivity(paper_sensitivity(n_rows, self.iteration_rank), self._most)
            printed = moved * self._printed
            return printed * (1.0 + center_norm) ** 2
        if self.mode in ("moment", "clipped"):
            return self.integers.std(n_rows)
        return self.sensitivity(n_rows, center_norm) * self.multiplier

    def product_mu(self, n_rows: int) -> float:
        """Return the Gaussian-DP parameter of one noised product, about whichever centre."""
        if self.mode != "paper":
            return self.mu
        quantising = math.sqrt(self.size) * 2.0**-BITS
        return (self.sensitivity(n_rows) / self.std(n_rows) + quantising) * (1 + 2.0**-40)

    def spectral_edge(self, n_rows: int) -> float:
        """Return τ√(2d): how negative an eigenvalue the noise of a noised moment can make."""
        return self.std(n_rows) * math.sqrt(2.0 * self.n_features)

    def _slack(self, n_rows: int, columns: int) -> float:
        """Return what float64 adds to the sensitivity of a release as wide as ``columns`` columns."""
        n_rows *= MOST_ROWS if self.per_unit else 1
        longest = _CENTRING * longest_sum(n_rows, self.n_features)
        return rounding_slack(n_rows, self.n_features, iteration_rank=columns, longest_sum=longest)


def longest_sum(n_rows: int, n_features: int) -> int:
    """Return L, through how many additions a term of a product or of a mean of s rows passes."""
    if n_rows <= FREE_ORDER_ROWS:
        return n_rows
    panel = max(1, min(PANEL_ROWS, 2**23 // n_features))
    return FREE_ORDER_ROWS + -(-(n_rows - FREE_ORDER_ROWS) // panel)
