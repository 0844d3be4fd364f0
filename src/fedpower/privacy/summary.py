"""The joint statistic of `moment` mode: second moment, mean row and trace in one release.

Neither the mean (for centring) nor the trace (for explained variance) costs a release of its own.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import lower_triangle
from fedpower.privacy.sensitivity import moment_sensitivity

Array = NDArray[np.float64]

MEAN_WEIGHT = 0.5
"""c: how much of the sensitivity the mean row may use; see `summary_sensitivity`."""


def summary_sensitivity(n_rows: int, *, with_mean: bool) -> float:
    """Return √2(1 + c²)/s, the sensitivity of (S, √2·c·μ, tr S); √2/s without the mean (c = 0).

    Neighbours: replace one row x by y, both of norm ≤ 1. Norm: Frobenius for S, Euclidean for the
    rest, together.

    Theorem. For 0 ≤ c ≤ 3/4, s² times the squared sensitivity is at most 2(1 + c²)², attained by unit
    vectors with xᵀy = −c². So the trace is free, and the mean costs a factor 1 + c².

    Proof. Let a = ‖x‖ ≥ b = ‖y‖ and t = xᵀy, |t| ≤ ab. The squared change is
    F = (a⁴ + b⁴ − 2t²) + 2c²(a² + b² − 2t) + (a² − b²)², concave in t with its maximum at t = −c².
    If c² ≤ ab that t can be had, and F = 2u² + 2v² − 2uv + 2c²(u + v) + 2c⁴ with u = a², v = b²: convex
    on [0, 1]², so largest at a corner, which is u = v = 1 with 2(1 + c²)². If c² > ab the best t is
    −ab, and F = 2(a + b)²[(a − b)² + c²], increasing in a: so a = 1, b < c², and
    F/2 = (1 − b²)² + c²(1 + b)² ≤ 1 + c²(1 + c²)² ≤ (1 + c²)², the last because c² + c⁴ ≤ 1. ∎

    The pair (S, √2·c·μ) is the augmented moment of the rows (x, c)/√(1 + c²), scaled by
    1 + c² and without its constant corner. Those rows have norm at most 1, so that moment has
    sensitivity √2/s by `moment_sensitivity`, which scaled by 1 + c² is the bound above: the two ways
    to centre cost the same, and this one has the trace besides.
    """
    factor = 1.0 + MEAN_WEIGHT**2 if with_mean else 1.0
    return moment_sensitivity(n_rows) * factor


def pack(moment: Array, mean: Array | None, trace: float) -> Array:
    """Return (S_jj, √2·S_jl for j > l; √2·c·μ; tr S) as one vector, an isometry of the norms above."""
    size = moment.shape[0]
    parts = [moment[lower_triangle(size)] * factors(size)]
    if mean is not None:
        parts.append(math.sqrt(2.0) * MEAN_WEIGHT * mean)
    return np.concatenate([*parts, [trace]])


def unpack(vector: Array, n_features: int, *, with_mean: bool) -> tuple[Array, Array | None, float]:
    """Return (moment, mean, trace) from what `pack` made, the moment exactly symmetric."""
    rows, columns = lower_triangle(n_features)
    moment = np.empty((n_features, n_features))
    moment[rows, columns] = moment[columns, rows] = vector[: rows.size] / factors(n_features)
    mean = None
    if with_mean:
        scaled = vector[rows.size : rows.size + n_features]
        mean = scaled / (math.sqrt(2.0) * MEAN_WEIGHT)
    return moment, mean, float(vector[-1])


def summary_size(n_features: int, *, with_mean: bool) -> int:
    """Return the number of coordinates of a packed summary."""
    return n_features * (n_features + 1) // 2 + (n_features if with_mean else 0) + 1


@functools.lru_cache(maxsize=1)
def factors(n_features: int) -> Array:
    """Return what the isometry multiplies each number of the lower triangle by."""
    return np.where(np.equal(*lower_triangle(n_features)), 1.0, math.sqrt(2.0))
