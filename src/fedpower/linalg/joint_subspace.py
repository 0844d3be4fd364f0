"""The leading subspace that several noised products, and perhaps a noised moment, show together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.subspace import orth

Array = NDArray[np.float64]

_MOST_PASSES = 60
_STILL = 1e-9


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
    if moment is None:
        within = _span(products, level, start)
        if 2 * within.shape[1] <= dim:
            inside = [
                replace(each, product=within.T @ each.product, basis=within.T @ each.basis)
                for each in products
            ]
            begin = None if start is None else within.T @ start
            found = _fitted(inside, None, begin, rank=rank, level=level, dim=dim)
            return replace(found, basis=within @ found.basis)
    return _fitted(products, moment, start, rank=rank, level=level, dim=dim)


def _span(products: Sequence[NoisedProduct], level: float, start: Array | None) -> Array:
    """Return an orthonormal basis of all Y_t − bZ_t, and of the start."""
    parts = [each.product - level * each.basis for each in products]
    return np.linalg.qr(np.hstack(parts if start is None else [*parts, start]))[0]


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
    basis = _stacked(products, rank, level) if start is None else start[:, :rank]
    for _ in range(_MOST_PASSES):
        left, inner = _left_factor(products, moment, basis, level)
        half = _inverse_root(inner)
        found, clear, right = np.linalg.svd(left @ half, full_matrices=False)
        turned = float(np.linalg.svd(basis.T @ found, compute_uv=False)[-1])
        before, basis = basis, found
        if 1.0 - turned < _STILL:
            break
    # Columns of noise alone have length √d: what is beyond is signal, and tells how far off they are.
    signal = np.sqrt(np.maximum(clear**2 - dim, 0.0))
    cosines = signal**2 / np.maximum(clear**2, np.finfo(np.float64).tiny)
    strength = np.linalg.norm((signal[:, np.newaxis] * right) @ half, axis=1)
    product = (found * clear) @ right @ half  # GU of the last U but one
    inner_core = found.T @ product @ (before.T @ found)
    core = (inner_core + inner_core.T) / 2.0 + level * np.eye(len(clear))
    return JointFit(basis=found, captured=strength * cosines, core=core)


def _stacked(products: Sequence[NoisedProduct], rank: int, level: float) -> Array:
    side_by_side = np.hstack(
        [math.sqrt(each.precision) * (each.product - level * each.basis) for each in products]
    )
    _, vectors = np.linalg.eigh(side_by_side.T @ side_by_side)
    return orth(side_by_side @ vectors[:, ::-1][:, :rank])


def _left_factor(
    products: Sequence[NoisedProduct], moment: NoisedProduct | None, basis: Array, level: float
) -> tuple[Array, Array]:
    """Return W and N for an estimate U."""
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
