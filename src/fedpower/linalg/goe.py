"""How large an eigenvalue symmetric Gaussian noise can show: a bound that holds for every size."""

import functools
import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_POINTS = 4001
_REACH = 12.0
"""The quantile is looked for within this many widths of the edge; levels down to 1e-9 lie there."""


@functools.lru_cache(maxsize=64)
def goe_quantile(n: int, level: float) -> float:
    """Return q with P[λ_max(E) > q] ≤ ``level`` for n×n symmetric noise, diagonal variance 1, off it 1/2."""
    edge, width = math.sqrt(2.0 * n), n ** (-1.0 / 6.0)
    points = np.linspace(max(edge - 3.0 * width, 0.0), edge + _REACH * width, _POINTS)
    beyond = _integral_to_the_right(eigenvalue_density(n, points), points)
    first = int(np.flatnonzero(beyond > level)[-1])
    logs = np.log(beyond[first : first + 2])
    share = float((logs[0] - math.log(level)) / (logs[0] - logs[1]))
    return float(points[first] + share * (points[first + 1] - points[first]))


def eigenvalue_density(n: int, points: Array) -> Array:
    """Return ρ(x) of n×n symmetric noise, which integrates to n, at evenly spaced growing ``points``."""
    squares, before, last = _hermite_functions(n, points)
    tail = _integral_to_the_right(last, points)
    total = _hermite_integral(n) if n % 2 == 0 else 0.0
    density = squares + math.sqrt(n / 2.0) * before * (0.5 * total - tail)
    if n % 2 == 1:
        density += before / _hermite_integral(n - 1)
    return np.asarray(density)


def _hermite_functions(n: int, points: Array) -> tuple[Array, Array, Array]:
    """Return (Σ_{j<n} φ_j², φ_{n−1}, φ_n), each with its exponent kept aside on the way up."""
    exponent = -(points**2) / 2.0
    before, now = np.zeros_like(points), np.full_like(points, math.pi**-0.25)
    squares = np.zeros_like(points)
    for j in range(n):
        squares += now**2
        after = math.sqrt(2.0 / (j + 1)) * points * now - math.sqrt(j / (j + 1)) * before
        before, now = now, after
        size = np.maximum(np.maximum(np.abs(now), np.abs(before)), 1e-300)
        before, now, squares = before / size, now / size, squares / size**2
        exponent += np.log(size)
    scale = np.exp(exponent)
    return squares * scale**2, before * scale, now * scale


def _hermite_integral(n: int) -> float:
    """Return ∫φ_n for even n: √2·π^¼ for n = 0, and √((n−1)/n) times the one before."""
    logs = (math.log((j - 1) / j) for j in range(2, n + 1, 2))
    return math.sqrt(2.0 * math.sqrt(math.pi)) * math.exp(0.5 * math.fsum(logs))


def _integral_to_the_right(values: Array, points: Array) -> Array:
    """Return ∫_x^∞ at every point, by the trapezoidal rule from the last one, beyond which is nothing."""
    pieces = (values[1:] + values[:-1]) / 2.0 * float(points[1] - points[0])
    return np.append(np.cumsum(pieces[::-1])[::-1], 0.0)
