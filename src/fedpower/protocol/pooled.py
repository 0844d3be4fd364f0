"""The pooled covariance of a run, the gains of its columns, its noise, and what a bound cut off."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedpower.linalg import Array
from fedpower.privacy.sensitivity import MEAN_WEIGHT
from fedpower.rules.codebook import CodeBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A pooled moment as it may be published: everything else is computed from it."""

    covariance: Array
    center: Array | None
    total_variance: float
    noise_std: float = 0.0
    mean_weight: float = MEAN_WEIGHT
    remarks: tuple[str, ...] = ()
    present: Array | None = None

    def of_columns(self, book: CodeBook | None) -> "Pooled":
        """Return the moment corrected for missing cells, with what a code book warns of."""
        if book is None:
            return self
        known = np.diagonal(self.covariance) > _CLEAR * self.noise_std
        remarks = (*self.remarks, *book.warnings(known.tolist()))
        if book.present is None or (book.present == 1.0).all():
            return replace(self, remarks=remarks)
        covariance = available_case(self.covariance, book.present, self.center)
        return replace(
            self,
            covariance=covariance,
            center=None if self.center is None else self.center / book.present,
            total_variance=self.total_variance + float(np.trace(covariance) - np.trace(self.covariance)),
            remarks=remarks,
            present=book.present,
        )


_CLEAR = 3.0
"""Times the noise's deviation: a larger variance is that of the column."""


def available_case(covariance: Array, present: Array, center: Array | None = None) -> Array:
    """Return the covariance of rows without gaps, from that of rows with 0 for a missing cell."""
    corrected = covariance / np.outer(present, present)
    mean = np.zeros(len(present)) if center is None else center
    np.fill_diagonal(corrected, (np.diagonal(covariance) + mean**2) / present - (mean / present) ** 2)
    return corrected


_LIGHT, _USUAL, _HEAVY = 1e6, 8.0, 4.0
"""ν of the least, the likely and the most that is supposed to be cut off."""

_EVEN = 10.0
"""For the least, squared norms have so many times less variance than those of normal rows."""

_LIGHT_CUT, _HARD_CUT, _OUTSIDE = 0.15, 0.1, 0.5
"""A bound that cuts off a share f of the squared length moves correlations by about 0.15√f + 0.1f², and
a range by 0.5 times the share of cells outside it: learned from public tables (`benchmarks.angles`)."""

_ESTIMATED_CUT, _DOUBTED = 0.4, 0.15
"""Where f is an estimate from the trace: 0.4f at most for the first term, and the share of what is likely
that counts beyond what is certain."""

_STDS = 2.0
"""So many standard deviations of its noise the trace is taken to be off."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """What the bound did to the rows, as far as releases show."""

    rows: float
    rows_most: float
    energy: float
    energy_least: float
    energy_most: float
    counted: bool

    def summary(self, bound: float, *, by_person: bool = False) -> str:
        """Return what the bound did to the rows, in one sentence."""
        whose = "persons' rows" if by_person else "rows"
        most = "" if self.counted else f" (at most {_share(self.rows_most)})"
        ends = "" if self.counted else f" ({_share(self.energy_least)} to {_share(self.energy_most)})"
        return (
            f"About {_share(self.rows)} of {whose}{most} were longer than {bound:.3g} and were shortened, "
            f"which removed about {_share(self.energy)} of the variance{ends} (estimated with noise)."
        )

    def moves(self, n_features: int, outside: Array | None = None) -> Array:
        """Return about the standard deviation of what it does to correlations, by column."""
        share, light = self.energy, _LIGHT_CUT * math.sqrt(self.energy)
        if not self.counted:  # the trace of rows that are all alike looks as if they were shortened
            share = self.energy_least + _DOUBTED * (self.energy - self.energy_least)
            light = min(_LIGHT_CUT * math.sqrt(share), _ESTIMATED_CUT * share)
        cut = light + _HARD_CUT * share**2
        return np.full(n_features, cut) + _OUTSIDE * (0.0 if outside is None else outside)


def clipping_of(
    values: Array,
    *,
    counted: tuple[float, float] | None,
    n_features: int,
    trace: float,
    center: Array | None,
    std: float,
) -> Clipping | None:
    """Return what a bound did to rows: counted, or as a released moment's eigenvalues and trace show it."""
    if counted is not None:
        rows, energy = counted
        return Clipping(rows, 1.0, energy, energy, energy, counted=True)
    if math.isnan(trace):
        return None
    mean_square = 0.0 if center is None else float(center @ center)
    total = max(trace, 0.0)
    leading = np.clip(values[:n_features], 0.0, None)
    leading *= min(1.0, total / leading.sum()) if leading.sum() > 0 else 0.0
    after = max(n_features - leading.size, 1)
    squares = float(leading @ leading) + (total - float(leading.sum())) ** 2 / after
    spread = 2.0 * squares + 4.0 * mean_square * float(leading.max(initial=0.0))
    mean = total + mean_square
    shape = mean**2 / spread if spread > 0 else float(n_features)
    likely = _law(mean, shape, _USUAL)
    least = _law(mean - _STDS * std, _EVEN * shape, _LIGHT)
    most = _law(mean + _STDS * std, shape, _HEAVY)
    rows_most = min(max(mean + _STDS * std, 0.0), 1.0)
    return Clipping(likely[0], rows_most, likely[1], least[1], most[1], counted=False)


def _law(kept: float, shape: float, tails: float) -> tuple[float, float]:
    """Return the shares of rows and of squared length cut off, of squared norms sF with F(2·shape, ν)."""
    import scipy.special  # noqa: PLC0415 - only where a bound cuts rows

    first, mean, wanted = 2.0 * shape, tails / (tails - 2.0), min(max(kept, 1e-6), 0.999)

    def beyond(edge: float) -> float:
        return float(scipy.special.fdtrc(first, tails, edge))

    def excess(log_scale: float) -> float:
        edge = math.exp(-log_scale)
        within = float(scipy.special.fdtr(first + 2.0, tails - 2.0, edge * first / (first + 2.0) / mean))
        return mean * within / edge + beyond(edge) - wanted

    least, most = -40.0, 60.0
    for _ in range(60):  # bisection: scipy's takes half a second to import
        middle = (least + most) / 2.0
        least, most = (least, middle) if excess(middle) > 0 else (middle, most)
    scale = math.exp(most)
    return beyond(1.0 / scale), max(1.0 - wanted / (scale * mean), 0.0)


def shares_cut(squared: Array, weights: Array) -> tuple[float, float]:
    """Return shares of rows and of energy that a bound of 1 cuts off."""
    energy = squared * weights
    energy = energy / energy.sum()
    left = float(energy @ np.minimum(1.0, 1.0 / squared))
    return float(weights[squared > 1.0].sum()), max(1.0 - left, 0.0)


def _share(value: float) -> str:
    return "less than 0.1%" if value < 0.001 else f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


# --- what columns are multiplied by before the eigendecomposition ----------------------------------

Groups = tuple[tuple[int, ...], ...]
"""Places of columns that are the levels of one."""

Gains = Callable[[Array], Array]
"""From the diagonals of moments to the gains of their columns, along the last axis."""

FLOOR_STDS = 2.0
"""A column's variance is taken to be at least so many standard deviations of its noise."""

_CLEAR_STDS = 5.0
"""One below so many is taken to be at least a quarter of what most columns have: it may be anything."""


def varying(variances: Array, center: Array | None, n_rows: int) -> Array:
    """Return exact variances, 0 for what rounding leaves of a constant column, as scikit-learn takes it."""
    if center is None:
        return variances
    rounding = n_rows * np.finfo(np.float64).eps * center
    return np.where(variances > rounding**2, variances, 0.0)


def unit_variances(noise_std: float = 0.0, groups: Groups = (), clear: float = _CLEAR_STDS) -> Gains:
    """Return gains that bring columns to variance 1, as the moment's diagonal gives it."""

    def gains(diagonal: Array) -> Array:
        variances = np.array(diagonal, dtype=np.float64)
        for group in map(list, groups):
            variances[..., group] = np.sum(variances[..., group], axis=-1, keepdims=True)
        if noise_std > 0:
            usual = np.median(variances, axis=-1, keepdims=True) / 4.0
            least = np.clip(usual, FLOOR_STDS * noise_std, clear * noise_std)
            return np.asarray(1.0 / np.sqrt(np.maximum(variances, least)))
        return np.asarray(1.0 / np.sqrt(np.where(variances > 0, variances, 1.0)))

    return gains


def fixed(values: Array) -> Gains:
    """Return gains that are these whatever the moment: units that columns are brought back to."""
    return lambda diagonal: values
