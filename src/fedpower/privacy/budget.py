"""How a study's (ε, δ) at one silo is divided among the queries that it lists, from public facts."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from fedpower.privacy.accounting import mu_of
from fedpower.privacy.sensitivity import clipped_sensitivity, summary_size
from fedpower.sums.survey import STAGES

SMALLEST_EPSILON = 1e-4
"""A smaller ε leaves nothing but noise, and is within what accounting may be off by."""

COVARIANCE, MEAN, PRODUCT, SCORES = "covariance", "mean", "product", "scores"
"""Labels of queries; those of stages are their kinds, and clipped products have a number."""


class QueryTerms(NamedTuple):
    """One query of a study: its label, how many numbers answer it, its share of μ², how often it is asked."""

    label: str
    size: int
    share: float
    times: int = 1


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


def shares_of(
    *, n_rows: int | None, n_features: int, n_open: int, mu: float, n_noises: int = 1
) -> tuple[float, ...]:
    """Return what each of `STAGES` may spend of μ², from public numbers; 0 where one is not asked."""
    counts = math.sqrt(2.0 * n_open)
    change = (counts, counts, counts, 2.0 * math.sqrt(n_features), math.sqrt(2.0))
    shares = []
    for kind, length in zip(STAGES, change, strict=True):
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
    return tuple(shares)


def scores_share(scores_epsilon: float, epsilon: float, delta: float) -> float:
    """Return the share of μ² with which counts of scores alone cost ``scores_epsilon`` of ``epsilon``."""
    share = (mu_of(scores_epsilon, delta) / mu_of(epsilon, delta)) ** 2
    unit = 10.0 ** (math.floor(math.log10(share)) - 2)
    return float(f"{math.floor(share / unit) * unit:.3g}")


CLIP = 0.5
"""α over √(E‖Zᵀx‖²): so small that noise falls by more than clipping takes from the signal."""

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


class Design(NamedTuple):
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
            listed.append(QueryTerms(COVARIANCE, size, self.moment_share))
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
        """At most a half, and 4k/d, without a guess."""
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
        kept = CLIP * math.exp(math.lgamma((width + 1) / 2.0) - math.lgamma(width / 2.0))
        gain = (kept * math.sqrt(2.0 / width) / clipped_sensitivity(clip, width)) ** 2
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
