"""Column gains: what columns are multiplied by before the eigendecomposition of their moment.

The moment is released in units of the treated rows. Which question it answers is post-processing: with
1/deviations it is a matrix of correlations, with the columns' own units a covariance.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Groups = tuple[tuple[int, ...], ...]
"""Places of columns that are the levels of one."""

Gains = Callable[[Array], Array]
"""From the diagonal of a moment to the gains of its columns; any draw of it can be given."""

_FLOOR_STDS = 2.0
"""A column's variance is taken to be at least so many standard deviations of its noise."""

_CLEAR_STDS = 10.0
"""One below so many is taken to be at least a quarter of what most columns have: it may be anything."""


def unit_variances(noise_std: float = 0.0, groups: Groups = ()) -> Gains:
    """Return gains that bring columns to variance 1, as the moment's diagonal gives it.

    Parameters
    ----------
    noise_std
        σ of the moment's noise, at which variances are floored. Without noise a column of variance 0
        keeps its unit, as in scikit-learn.
    groups
        Columns of a group are divided by the deviation that they have together: a category has variance
        1 in all, as a number has, and a level that few rows have counts for no more than the others.
    """

    def gains(diagonal: Array) -> Array:
        variances = np.array(diagonal, dtype=np.float64)
        for group in map(list, groups):
            variances[group] = np.sum(variances[group])
        if noise_std > 0:
            usual = float(np.median(variances)) / 4.0
            least = max(_FLOOR_STDS * noise_std, min(_CLEAR_STDS * noise_std, usual))
            return np.asarray(1.0 / np.sqrt(np.maximum(variances, least)))
        return np.asarray(1.0 / np.sqrt(np.where(variances > 0, variances, 1.0)))

    return gains


def fixed(values: Array) -> Gains:
    """Return gains that are these whatever the moment: units that columns are brought back to."""
    return lambda diagonal: values


def noise_growth(gains: Array) -> float:
    """Return the factor by which the noise's edge grows where columns are multiplied by gains.

    Entries of variance τ²g_jg_l/2, g the squared gains, have a spectrum that ends at x, where
    x² = τ²/2 · min_r Σ_j g_j/(r(1 − g_jr)) over 0 < r < 1/max g: the edge of the solution m_j of
    −1/m_j = z + τ²g_j/2 · Σ_l g_lm_l [AEK17]. With equal g it is gτ√(2d), r = 1/2g.
    """
    import scipy.optimize  # noqa: PLC0415 - a third of a second, which silos' processes need not wait

    squares = gains**2
    squares, unit = squares / squares.max(), float(squares.max())

    def squared(r: float) -> float:
        return float(np.sum(squares / (1.0 - squares * r)) / r)

    least = scipy.optimize.minimize_scalar(squared, bounds=(1e-9, 1.0 - 1e-9), method="bounded")
    return unit * math.sqrt(float(least.fun) / (4.0 * squares.size))
