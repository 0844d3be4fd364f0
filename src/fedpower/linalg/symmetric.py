"""Symmetric matrices: the triangle that is sent, Ritz pairs, their error, and new directions."""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from fedpower.linalg.subspace import orth


@functools.cache
def blas() -> threadpoolctl.ThreadpoolController:
    """Return what bounds the threads of BLAS; to look for its libraries takes milliseconds."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


Array = NDArray[np.float64]
_Any = TypeVar("_Any", bound=np.generic)


def lower_of(matrix: NDArray[_Any]) -> NDArray[_Any]:
    """Return the numbers on or below the diagonal, row by row, in an array of their own."""
    return matrix[np.tri(len(matrix), dtype=np.bool_)]


def symmetric_of(below: NDArray[_Any], size: int) -> NDArray[_Any]:
    """Return the symmetric matrix that `lower_of` makes so."""
    matrix, places = np.empty((size, size), dtype=below.dtype), np.tri(size, dtype=np.bool_)
    matrix[places] = matrix.T[places] = below
    return matrix


def ritz_pairs(basis: Array, product: Array, shift: float = 0.0) -> tuple[Array, Array]:
    """Return (values, vectors): estimates of the leading eigenpairs from ``product`` ≈ (A + cI)·Z_prev."""
    left, values, _ = np.linalg.svd(basis.T @ product)
    return values - shift, basis @ left


def fix_signs(vectors: Array) -> Array:
    """Return ``vectors`` with each column's entry of largest magnitude made positive."""
    # Two entries that tie but for rounding must not decide by their last bits.
    magnitudes = np.abs(vectors)
    tallest = magnitudes.max(axis=0, initial=0.0)
    pivots = np.argmax(magnitudes >= tallest * (1 - 1e-8), axis=0)
    signs = np.where(vectors[pivots, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    return vectors * signs


_EPS = float(np.finfo(np.float64).eps)
DEPENDENT = 1e-7  # unit directions closer to the span of the others bring nothing new


def rayleigh_ritz(basis: Array, product: Array) -> tuple[Array, Array]:
    """Return (values, coefficients)."""
    compressed = basis.T @ product
    values, coefficients = np.linalg.eigh((compressed + compressed.T) / 2)
    return values[::-1], np.ascontiguousarray(coefficients[:, ::-1])


def moment_factor(rows: Array) -> Array:
    """Return F = Λ^½Uᵀ, q×d, with FᵀF = XᵀX/s for s rows X, from their Gram matrix."""
    values, left = np.linalg.eigh(rows @ rows.T / len(rows))
    kept = values > len(rows) * _EPS * max(float(values[-1]), 0.0)
    return np.ascontiguousarray((left[:, kept][:, ::-1].T @ rows) / np.sqrt(len(rows)))


def pairs_of_factors(factors: Sequence[Array], n_pairs: int | None) -> tuple[Array, Array]:
    """Return (values, vectors), largest first, of A = Σ F_iᵀF_i, from the inner products of all rows."""
    stacked = np.vstack(factors)
    values, left = spectrum_and_leading(stacked @ stacked.T, len(stacked) if n_pairs is None else n_pairs)
    if n_pairs is None:
        n_pairs = max(1, int(np.count_nonzero(values > len(values) * _EPS * values.max(initial=0.0))))
    basis = np.zeros((stacked.shape[1], n_pairs))
    basis[:, : left.shape[1]] = stacked.T @ left[:, :n_pairs]
    basis = orth(basis)
    scores = stacked @ basis
    squares, turn = np.linalg.eigh(scores.T @ scores)
    return np.maximum(squares[::-1], 0.0), np.ascontiguousarray(basis @ turn[:, ::-1])


def rounding_level(values: Array, n_features: int) -> float:
    """Return d·eps·max|θ|: a residual this small says that nothing is left to find."""
    return n_features * _EPS * float(np.abs(values).max(initial=0.0))


def product_noise(inner: Array) -> float:
    """Return about how far, entry by entry, a product Y is from AV, from VᵀY for a symmetric A."""
    above = (inner - inner.T)[np.triu_indices(len(inner), 1)]
    peak = float(np.abs(above).max(initial=0.0))  # squares of large numbers overflow
    return peak * float(np.sqrt(np.mean((above / peak) ** 2) / 2)) if peak > 0 else 0.0


def subspace_error(values: Array, residual_norm: float, rank: int, rounding: float) -> float:
    """Return ‖R_k‖₂/(θ_k − θ_{k+1}), at most 1: an estimate of sin θ_k [Davis–Kahan 1970, sin θ]."""
    if residual_norm == 0:
        return 0.0
    if values.size <= rank:
        return 1.0
    gap = max(float(values[rank - 1] - values[rank]), rounding)
    return min(1.0, residual_norm / gap) if gap > 0 else 1.0


def complement(candidates: Array, basis: Array, most: int, negligible: float) -> Array:
    """Return an orthonormal block of at most ``most`` directions of ``candidates`` orthogonal to V."""
    outside = candidates - basis @ (basis.T @ candidates)
    peaks = np.maximum(np.abs(outside).max(axis=0, initial=0.0), np.finfo(np.float64).tiny)
    norms = peaks * np.linalg.norm(outside / peaks, axis=0)
    picked = np.flatnonzero(norms > negligible)[: max(0, min(most, len(basis) - basis.shape[1]))]
    if not picked.size:
        return np.empty((len(basis), 0))
    unit = outside[:, picked] / norms[picked]
    for _ in range(2):  # twice is enough [Parlett §6.9]
        unit = unit - basis @ (basis.T @ unit)
    left, sizes, _ = np.linalg.svd(unit, full_matrices=False)
    block = left[:, sizes > DEPENDENT]
    for _ in range(2):
        block = block - basis @ (basis.T @ block)
        block = np.linalg.qr(block)[0]
    return np.ascontiguousarray(block)


def leading_pairs(multiply: Callable[[Array], Array], start: Array, n_products: int) -> tuple[Array, Array]:
    """Return nearly the leading eigenpairs of a symmetric operator: block Krylov from ``start``."""
    basis, product, width = start, multiply(start), start.shape[1]
    while True:
        values, coefficients = rayleigh_ritz(basis, product)
        leading = coefficients[:, :width]
        vectors = basis @ leading
        n_products -= 1
        if n_products == 0:
            return values[:width], vectors
        residual = product @ leading - vectors * values[:width]
        block = complement(residual, basis, width, rounding_level(values, len(start)))
        if not block.shape[1]:
            return values[:width], vectors
        basis = np.hstack([basis, block])
        product = np.hstack([product, multiply(block)])


def compressed(basis: Array, product: Array) -> Array:
    """Return (ZᵀY + YᵀZ)/2: ZᵀAZ, and of noise in Y what is symmetric."""
    inner = basis.T @ product
    return np.asarray((inner + inner.T) / 2.0)


_SMALL = 200
"""Columns up to which all eigenvectors are found sooner than SciPy is imported."""


def spectrum_and_leading(matrix: Array, count: int) -> tuple[Array, Array]:
    """Return all eigenvalues of a symmetric matrix, largest first, and vectors of the ``count`` largest."""
    dim = len(matrix)
    if dim <= _SMALL or 2 * count > dim:
        values, vectors = np.linalg.eigh(matrix)
        return values[::-1], vectors[:, ::-1][:, :count]
    from scipy.linalg import eigh_tridiagonal, eigvalsh_tridiagonal, lapack  # noqa: PLC0415

    # Both are of one tridiagonal form, which takes nearly all of the time.
    size = int(lapack.dsytrd_lwork(dim, lower=1)[0])
    made, diagonal, beside, scales, _ = lapack.dsytrd(matrix, lower=1, lwork=size)
    last = (dim - count, dim - 1)
    vectors = np.asfortranarray(eigh_tridiagonal(diagonal, beside, select="i", select_range=last)[1])
    reflectors = made[1:, :-1]
    size = int(lapack.dormqr("L", "N", reflectors, scales, vectors[1:], -1)[1][0])
    vectors[1:] = lapack.dormqr("L", "N", reflectors, scales, vectors[1:], size)[0]
    return np.asarray(eigvalsh_tridiagonal(diagonal, beside), dtype=np.float64)[::-1], vectors[:, ::-1]
