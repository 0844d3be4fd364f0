"""Column gains: what columns are multiplied by before the eigendecomposition of their moment."""

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
    """Return gains that bring columns to variance 1, as the moment's diagonal gives it."""

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
    """Return the factor by which the noise's edge grows where columns are multiplied by gains."""
    import scipy.optimize  # noqa: PLC0415 - a third of a second, which silos' processes need not wait

    squares = gains**2
    squares, unit = squares / squares.max(), float(squares.max())

    def squared(r: float) -> float:
        return float(np.sum(squares / (1.0 - squares * r)) / r)

    least = scipy.optimize.minimize_scalar(squared, bounds=(1e-9, 1.0 - 1e-9), method="bounded")
    return unit * math.sqrt(float(least.fun) / (4.0 * squares.size))
