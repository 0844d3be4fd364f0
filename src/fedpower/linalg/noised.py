"""What noised symmetric matrices and products show: how large noise is, spectra and subspaces without it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.subspace import orth

Array = NDArray[np.float64]

_MOST_PASSES = 60
_STILL = 1e-9


def goe_quantile(n: int, level: float) -> float:
    """Return about the q with P[λ_max(E) > q] = ``level`` for n×n symmetric noise, diagonal variance 1.

    The Tracy–Widom law is taken for a shifted gamma law [Chiani 2014], with the centre and the scale of
    [Johnstone & Ma 2012]: from 10 columns on it is off by 1%, and with fewer it is too large by up to 10%.
    """
    import scipy.special  # noqa: PLC0415

    tracy_widom = 0.186054 * float(scipy.special.gammainccinv(46.446, level)) - 9.84801
    return math.sqrt(2 * n - 1) + tracy_widom / math.pow(8 * n - 4, 1 / 6)


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
    """Return the values that fall and are nearest; scipy's function takes half a second to import."""
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
    """Return the r-dimensional subspace that fits all products best, and a moment from a start near it."""
    if moment is not None:
        return _fitted(products, moment, start, rank=rank, level=level, dim=len(moment.product))
    dim = len(products[0].product)
    within = np.linalg.qr(np.hstack([each.product - level * each.basis for each in products]))[0]
    if 2 * within.shape[1] > dim:
        return _fitted(products, None, None, rank=rank, level=level, dim=dim)
    inside = [
        replace(each, product=within.T @ each.product, basis=within.T @ each.basis) for each in products
    ]
    found = _fitted(inside, None, None, rank=rank, level=level, dim=dim)
    return replace(found, basis=within @ found.basis)


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
