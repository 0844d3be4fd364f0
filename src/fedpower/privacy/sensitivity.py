"""How far one row can move what a silo releases: the bounds every noise level rests on."""

from __future__ import annotations

import functools
import math
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg import lower_of, lower_triangle, symmetric_of

_UNIT_ROUNDOFF = 2.0**-53


def moment_sensitivity(n_rows: int) -> float:
    """Return √2/s, the Frobenius sensitivity of the second moment A = MᵀM/s."""
    return math.sqrt(2.0) / whole("n_rows", n_rows)


def product_sensitivity(n_rows: int, iteration_rank: int) -> float:
    """Return the Frobenius sensitivity of A Z, Z d×r with ‖Z‖₂ ≤ 1: 1/s if r = 1, else √2/s."""
    bound = 1.0 if whole("iteration_rank", iteration_rank) == 1 else math.sqrt(2.0)
    return bound / whole("n_rows", n_rows)


def clipped_sensitivity(clip: float, iteration_rank: int) -> float:
    """Return Δ(α), how far one row moves Σ x·c(Zᵀx)ᵀ, where c shortens a vector to norm α ≤ 1."""
    if not 0 < clip <= 1:
        raise InputError(f"clip must lie above 0 and be at most 1, got {clip!r}; give one between")
    square = clip * clip
    if whole("iteration_rank", iteration_rank) == 1:
        return 1.0 if square >= 0.5 else 2.0 * clip * math.sqrt(1.0 - square)
    if square <= 1.0 / 3.0:
        return 2.0 * clip * math.sqrt(1.0 - square)
    return (1.0 + square) / math.sqrt(2.0)


def mean_sensitivity(n_rows: int) -> float:
    """Return 2/s, the Euclidean sensitivity of the mean row."""
    return 2.0 / whole("n_rows", n_rows)


def paper_sensitivity(n_rows: int, iteration_rank: int) -> float:
    """Return 2√r/s, the sensitivity of A Z as printed in [FP Thm 2, first step of the proof]."""
    return 2.0 * math.sqrt(whole("iteration_rank", iteration_rank)) / whole("n_rows", n_rows)


def rounding_slack(
    n_rows: int, n_features: int, *, iteration_rank: int = 1, longest_sum: int | None = None
) -> float:
    """Return what float64 arithmetic can add to the sensitivity of a moment or of a product."""
    longest = whole("longest_sum", longest_sum or n_rows)
    n = (longest + 8 * whole("n_features", n_features) + 64) * _UNIT_ROUNDOFF
    if n >= 0.5:
        raise InputError(f"longest_sum must be below 2**52, got {longest}; add the rows in blocks")
    return 2.0 * math.sqrt(whole("iteration_rank", iteration_rank)) * n / (1.0 - n)


def whole(name: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 1; refuse it in one sentence if not."""
    if type(value) is int and value >= 1:  # what every silo asks some thirty times
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}; pass a positive int")
    return int(value)


def unit_sensitivity(of_a_row: float, rows_per_unit: int = 1) -> float:
    """Return C times the sensitivity of what rows contribute: that of persons whose rows weigh C at most."""
    return of_a_row * whole("rows_per_unit", rows_per_unit)


Array = NDArray[np.float64]

LARGEST_MEAN_WEIGHT = 0.75
"""Up to here the theorem of `summary_sensitivity` holds."""

MEAN_WEIGHT = 0.5
"""c unless a study says otherwise: how much of the sensitivity the mean row may use."""


def summary_sensitivity(n_rows: int, *, with_mean: bool, mean_weight: float = MEAN_WEIGHT) -> float:
    """Return √2(1 + c²)/s, the sensitivity of (S, √2·c·μ, tr S); √2/s without the mean (c = 0)."""
    factor = 1.0 + mean_weight**2 if with_mean else 1.0
    return moment_sensitivity(n_rows) * factor


def pack(moment: Array, mean: Array | None, trace: float, mean_weight: float = MEAN_WEIGHT) -> Array:
    """Return (S_jj, √2·S_jl for j > l; √2·c·μ; tr S) as one vector, an isometry of the norms above."""
    size = moment.shape[0]
    parts = [lower_of(moment) * factors(size)]
    if mean is not None:
        parts.append(math.sqrt(2.0) * mean_weight * mean)
    return np.concatenate([*parts, [trace]])


def unpack(
    vector: Array, n_features: int, *, with_mean: bool, mean_weight: float = MEAN_WEIGHT
) -> tuple[Array, Array | None, float]:
    """Return (moment, mean, trace) from what `pack` made, the moment exactly symmetric."""
    below, mean, trace = unpack_below(vector, n_features, with_mean=with_mean, mean_weight=mean_weight)
    return symmetric_of(below, n_features), mean, trace


def unpack_below(
    vector: Array, n_features: int, *, with_mean: bool, mean_weight: float = MEAN_WEIGHT
) -> tuple[Array, Array | None, float]:
    """Return the same with the moment's lower triangle, row by row, in place of the moment."""
    half = n_features * (n_features + 1) // 2
    mean = None
    if with_mean:
        mean = vector[half : half + n_features] / (math.sqrt(2.0) * mean_weight)
    return vector[:half] / factors(n_features), mean, float(vector[-1])


def summary_size(n_features: int, *, with_mean: bool) -> int:
    """Return the number of coordinates of a packed summary."""
    return n_features * (n_features + 1) // 2 + (n_features if with_mean else 0) + 1


@functools.lru_cache(maxsize=1)
def factors(n_features: int) -> Array:
    """Return what the isometry multiplies each number of the lower triangle by."""
    return np.where(np.equal(*lower_triangle(n_features)), 1.0, math.sqrt(2.0))
