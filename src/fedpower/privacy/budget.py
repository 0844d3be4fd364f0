"""How a study's (ε, δ) at one silo is divided among its releases."""

import math
from dataclasses import dataclass, field
from typing import Literal

from fedpower.errors import InputError
from fedpower.privacy.accounting import NoiseMode, delta_with_distance, mu_of, noise_multiplier
from fedpower.privacy.integer_release import IntegerNoise, integer_noise
from fedpower.privacy.noise import BITS, TV_PER_INTEGER
from fedpower.privacy.preparation import (
    MOST_COUNTS,
    SCORES,
    STAGES,
    TALLY_PARTS,
    stage_scales,
)
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
"""Of a grid of scores (`fedpower.data.score_counts`)."""

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
    """The price list of a private study, the same for every silo and known to all.

    Attributes
    ----------
    mode
        What is noised.
    epsilon, delta
        What all releases of one silo may cost together.
    n_features, iteration_rank
        d and r.
    n_steps
        T, the noised steps; plays no part in ``moment`` mode.
    center
        Whether the mean row is released: in the same release in ``moment`` mode, as one release more
        in the others.
    n_sharing
        How many silos the study lists, where a release is their secure sum and its noise is made of
        their shares; None where each silo noises what it sends by itself.
    colluders
        c, how many of these may tell the coordinator all they know.
    sums
        Where an attempt is several secure sums: label, length and share of μ² of each, in order.
    preparation
        Shares of μ² that the stages of preparation spend before the moment (`privacy.preparation`); empty
        where rows were prepared before, or by people. Where there are ``sums``, these have them too.
    n_open
        How many columns preparation finds a range for.
    mean_weight
        c of the joint release of moment, mean and trace.
    per_unit
        C, for how many rows a person counts at most, where a person is the unit; 0 where a row is.
    scores
        Share of μ² of the counts of rows by their scores; 0 where none are asked for. Where these are one
        of the secure ``sums``, it has the share too.
    slack_delta
        The part of δ that pays for the sampler's distance from the ideal, for one release; for all sums
        of an attempt together, where there are several.
    mu
        The Gaussian-DP parameter of one release, in ``moment`` mode of the moment; all of them compose
        to (ε, δ) exactly. That of a whole attempt, where it is several sums.
    total_mu
        That of all of them together.
    """

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
        """Return the noise of a stage's whole numbers, cells having ``side`` for their largest.

        Of `SCORES` too, where ``side`` plays no part. ``n_asked`` are the columns that a stage counts in,
        where these are not all that are open.
        """
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
        """Whether tr A leaves with each product.

        It is free beside a product of two columns or more, whose sensitivity √2/s covers both
        (`summary_sensitivity` with c = 0); beside one column, whose own is 1/s, it would not be.
        """
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
        """Total variation distance of one release from the ideal one.

        A sum is as far from it as all its integers together, and 2⁻¹⁰⁰⁰ more (`shares.sum_distance`).
        """
        return self.size * (1 if self.n_sharing is None else self.n_sharing + 1) * TV_PER_INTEGER

    @property
    def multiplier(self) -> float:
        """Noise standard deviation over sensitivity, for one release; rounded up.

        Of the moment's, where an attempt is several sums.
        """
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
                self.multiplier,
                with_mean=self.center,
                mean_weight=self.mean_weight,
                per_unit=self.per_unit,
            )
            object.__setattr__(self, "_integers", found)
        return found

    def sensitivity(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the sensitivity of a silo's release, rounding of float64 sums included.

        About a public centre of norm c rows have norm at most 1 + c, so a product's sensitivity grows
        by (1 + c)²; the summary of ``moment`` mode is taken about the origin, from sums of whole numbers
        that nothing rounds (`integer_release`).
        """
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
        """Return the Gaussian-DP parameter of one noised product, about whichever centre.

        In ``paper`` it is what the printed noise really costs, which is less than the theorem
        promises: Δ/ν, and at most √N·2⁻³⁰ more for quantising N numbers.
        """
        if self.mode != "paper":
            return self.mu
        quantising = math.sqrt(self.size) * 2.0**-BITS
        return (self.sensitivity(n_rows) / self.std(n_rows) + quantising) * (1 + 2.0**-40)

    def spectral_edge(self, n_rows: int) -> float:
        """Return τ√(2d): how negative an eigenvalue the noise of a noised moment can make.

        The largest eigenvalue of symmetric noise with off-diagonal variance τ²/2 tends to τ√(2d)
        (semicircle law).
        """
        return self.std(n_rows) * math.sqrt(2.0 * self.n_features)

    def _slack(self, n_rows: int, columns: int) -> float:
        """Return what float64 adds to the sensitivity of a release as wide as ``columns`` columns.

        The trace beside a product of r columns is at most as far off as a column of its own. Persons have
        more rows than there are persons, `MOST_ROWS` times as many at most: silos refuse others. Terms of
        such a sum still add up to no more than the public number.
        """
        n_rows *= MOST_ROWS if self.per_unit else 1
        longest = _CENTRING * longest_sum(n_rows, self.n_features)
        return rounding_slack(n_rows, self.n_features, iteration_rank=columns, longest_sum=longest)


def longest_sum(n_rows: int, n_features: int) -> int:
    """Return L, through how many additions a term of a product or of a mean of s rows passes.

    For ``step`` and ``paper``, whose products may be made with a moment that was summed in float64.

    s up to 2¹⁷ rows, whatever the order of summation. Beyond, 2¹⁷ + (s − 2¹⁷)/128, which supposes
    what `fedpower.data` and every BLAS that it runs on do: rows are read in blocks of at most 2¹⁶, of
    at least 128 on average (fewer only where 128 rows are more than 64 MiB), a block is multiplied in
    panels of 128 rows or more, and panels and blocks are added up one by one.

    `_CENTRING` times it goes into `rounding_slack`, whose theorem is about plain sums: the data layer
    takes rows about the first block's mean, merges blocks' means and scatters, and shifts back.
    Proof of the factor. Rows have norm ≤ 1, so rows about that mean have norm ≤ 2 and any computed
    mean of them is off by at most 2γ_L. The scatter about the blocks' means sums to at most s: off by
    γ_L. An error e of a mean enters it squared, enters the merging as 2e (Cauchy–Schwarz: weights
    times squared steps add up to at most s) and the shift back as 2e. Together at most 9γ_L; the
    tenth is for the subtractions before each of them. ∎

    Dense rows on the CPU stay below that: bounded ones are squared about 0, or about their block's mean.
    Squares add up to at most s: γ_L. So do the rank-one terms that take blocks' means out, and those
    that merge them: γ_L each, and whatever a computed mean is, it leaves with the one what it came with
    in the other. Only about a block's own mean its error e ≤ γ_L counts, as 2e. Rows come in units of
    the bound, by whose square the sum is divided once.
    """
    if n_rows <= FREE_ORDER_ROWS:
        return n_rows
    panel = max(1, min(PANEL_ROWS, 2**23 // n_features))
    return FREE_ORDER_ROWS + -(-(n_rows - FREE_ORDER_ROWS) // panel)
