"""What noised symmetric matrices and products show: how large noise is, spectra and subspaces without it."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.subspace import orth

Array = NDArray[np.float64]

_POINTS = 4001
_REACH = 12.0  # the quantile is within this many widths of the edge, for levels down to 1e-9
_MOST_PASSES = 60
_STILL = 1e-9


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
    pieces = (values[1:] + values[:-1]) / 2.0 * float(points[1] - points[0])
    return np.append(np.cumsum(pieces[::-1])[::-1], 0.0)


def shrunk_spectrum(values: Array, std: float, *, of: Literal["matrix", "estimate"] = "estimate") -> Array:
    """Return the spectrum of a symmetric matrix from that of its noised version, largest first."""
    if std == 0.0:
        return values.copy()
    shrunk, weight = np.empty_like(values), std**2 * (2.0 if of == "estimate" else 1.0)
    for first in range(0, values.size, 256):  # d² numbers at once would be 200 MB for 5,000 columns
        gaps = values[first : first + 256, np.newaxis] - values
        pull = np.sum(gaps / (gaps**2 + std**2), axis=1)
        shrunk[first : first + 256] = values[first : first + 256] - weight * pull
    return _falling(shrunk)


def _falling(values: Array) -> Array:
    """Return the values that fall and are nearest: neighbours that rise are replaced by their mean."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        mean, size = value, 1
        while means and means[-1] <= mean:
            before, many = means.pop(), sizes.pop()
            mean, size = (before * many + mean * size) / (many + size), many + size
        means.append(mean)
        sizes.append(size)
    return np.repeat(means, sizes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisedProduct:
    """Y = AZ + noise of variance 1/``precision`` in every entry; ``basis`` is Z, d×r orthonormal."""

    product: Array
    basis: Array
    precision: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointFit:
    """What products show together."""

    basis: Array
    captured: Array
    core: Array


def joint_subspace(
    products: Sequence[NoisedProduct],
    *,
    rank: int,
    level: float,
    moment: NoisedProduct | None = None,
    start: Array | None = None,
) -> JointFit:
    """Return the r-dimensional subspace that fits all products of one moment best."""
    dim = (products[0] if products else moment).product.shape[0]  # type: ignore[union-attr]
    if moment is None:  # an orthonormal basis of all Y_t − bZ_t, and of the start
        parts = [each.product - level * each.basis for each in products]
        within = np.linalg.qr(np.hstack(parts if start is None else [*parts, start]))[0]
        if 2 * within.shape[1] <= dim:
            inside = [
                replace(each, product=within.T @ each.product, basis=within.T @ each.basis)
                for each in products
            ]
            begin = None if start is None else within.T @ start
            found = _fitted(inside, None, begin, rank=rank, level=level, dim=dim)
            return replace(found, basis=within @ found.basis)
    return _fitted(products, moment, start, rank=rank, level=level, dim=dim)


def _fitted(
    products: Sequence[NoisedProduct],
    moment: NoisedProduct | None,
    start: Array | None,
    *,
    rank: int,
    level: float,
    dim: int,
) -> JointFit:
    """Return the fit by passes until it is still; ``dim`` is d, of which products may show a part."""
    if start is None:
        stacked = np.hstack([math.sqrt(y.precision) * (y.product - level * y.basis) for y in products])
        leading = np.linalg.eigh(stacked.T @ stacked)[1][:, ::-1][:, :rank]
        basis = orth(stacked @ leading)
    else:
        basis = start[:, :rank]
    for _ in range(_MOST_PASSES):
        left, inner = _left_factor(products, moment, basis, level)
        half = _inverse_root(inner)
        found, clear, right = np.linalg.svd(left @ half, full_matrices=False)
        turned = float(np.linalg.svd(basis.T @ found, compute_uv=False)[-1])
        before, basis = basis, found
        if 1.0 - turned < _STILL:
            break
    # Columns of pure noise have length √d: what is beyond is signal, and shows how far off they are.
    signal = np.sqrt(np.maximum(clear**2 - dim, 0.0))
    cosines = signal**2 / np.maximum(clear**2, np.finfo(np.float64).tiny)
    strength = np.linalg.norm((signal[:, np.newaxis] * right) @ half, axis=1)
    product = (found * clear) @ right @ half  # GU of the last U but one
    inner_core = found.T @ product @ (before.T @ found)
    core = (inner_core + inner_core.T) / 2.0 + level * np.eye(len(clear))
    return JointFit(basis=found, captured=strength * cosines, core=core)


def _left_factor(
    products: Sequence[NoisedProduct], moment: NoisedProduct | None, basis: Array, level: float
) -> tuple[Array, Array]:
    rank = basis.shape[1]
    left, inner = np.zeros(basis.shape), np.zeros((rank, rank))
    for each in products:
        turned = each.basis.T @ basis
        left += each.precision * ((each.product - level * each.basis) @ turned)
        inner += each.precision * (turned.T @ turned)
    if moment is not None:
        left += moment.precision * (moment.product @ basis - level * basis)
        inner += moment.precision * np.eye(rank)
    return left, inner


def _inverse_root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, values[-1] * 1e-9)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)
