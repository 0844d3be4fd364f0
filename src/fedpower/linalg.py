"""The linear algebra of the paper: pure functions, no randomness, no input or output."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

Array = NDArray[np.float64]
_Any = TypeVar("_Any", bound=np.generic)

_ORTHONORMAL_TOLERANCE = 1e-6  # how far from the identity ``ZᵀZ`` may be, entry by entry


def orth(product: Array) -> Array:
    """Return an orthonormal basis Z of the columns of ``product`` by QR [FP eq. 2.1].

    R has a non-negative diagonal: for full column rank the factor is unique. A rank-deficient product still
    gives orthonormal columns: Householder QR completes the basis.
    """
    basis, triangle = np.linalg.qr(product)
    basis *= np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    return basis


def is_orthonormal(basis: Array, tolerance: float = _ORTHONORMAL_TOLERANCE) -> bool:
    """Return whether the columns of ``basis`` are finite and orthonormal to ``tolerance``."""
    # A number that is not finite leaves the square of its column not finite, and no comparison holds.
    with np.errstate(over="ignore", invalid="ignore"):
        gram = basis.T @ basis
        return bool(np.abs(gram - np.eye(gram.shape[0])).max(initial=0.0) <= tolerance)


Alignment = Literal["procrustes", "sign", "identity"]


def procrustes(basis: Array, reference: Array) -> Array:
    """Return D = argmin over orthogonal D of ‖basis·D − reference‖_F [FP eq. 3.2, F = O_r].

    D = W₁W₂ᵀ from the SVD W₁ΛW₂ᵀ of basisᵀ·reference [Schönemann 1966]; Lemma 17 of the paper's appendix
    prints W₁W₂, where W₂ is the transposed factor.
    """
    left, _, right_t = np.linalg.svd(basis.T @ reference)
    return np.asarray(left @ right_t)


def sign(basis: Array, reference: Array) -> Array:
    """Return the diagonal ±1 matrix that best aligns column by column [LocalPower, sign-fixing]."""
    inner = np.einsum("ij,ij->j", basis, reference)
    return np.diag(np.where(inner < 0, -1.0, 1.0))


ALIGNMENTS: dict[Alignment, Callable[[Array, Array], Array]] = {
    "procrustes": procrustes,
    "sign": sign,
    "identity": lambda basis, reference: np.eye(basis.shape[1]),  # none [FP eq. 3.2, F = {I_r}]
}
"""By name: the r×r orthogonal D that turns a basis towards a reference."""


def sin_theta(basis: Array, target: Array) -> float:
    """Return sin θ_k = ‖(I − ZZᵀ)U_k‖₂ of orthonormal Z and U_k [FP eq. 2.6]."""
    residual = target - basis @ (basis.T @ target)
    return min(float(np.linalg.norm(residual, 2)), 1.0)


def principal_angles(first: Array, second: Array) -> Array:
    """Return all principal angles in radians, smallest first [FP App. E]."""
    import scipy.linalg  # noqa: PLC0415 - commands that compare nothing start without it

    return np.sort(np.asarray(scipy.linalg.subspace_angles(first, second), dtype=np.float64))


def misalignment(aligned: Sequence[Array], reference: Array) -> float:
    """Return ρ_t = max_i ‖Z_t^(i) D^(i) − Z_t^(1)‖₂ for already rotated bases [FP eq. 3.3]."""
    return float(max(np.linalg.norm(basis - reference, 2) for basis in aligned))


# --- symmetric matrices: the triangle that is sent, Ritz pairs, their error, new directions ---


@functools.cache
def blas() -> threadpoolctl.ThreadpoolController:
    """Return what bounds the threads of BLAS; to look for its libraries takes milliseconds."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


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


def compressed(basis: Array, product: Array) -> Array:
    """Return (ZᵀY + YᵀZ)/2: ZᵀAZ, and of noise in Y what is symmetric."""
    inner = basis.T @ product
    return np.asarray((inner + inner.T) / 2.0)


def rayleigh_ritz(basis: Array, product: Array) -> tuple[Array, Array]:
    """Return (values, coefficients) of what `compressed` returns, largest first."""
    values, coefficients = np.linalg.eigh(compressed(basis, product))
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
    made, diagonal, off_diagonal, scales, _ = lapack.dsytrd(matrix, lower=1, lwork=size)
    last = (dim - count, dim - 1)
    vectors = np.asfortranarray(eigh_tridiagonal(diagonal, off_diagonal, select="i", select_range=last)[1])
    reflectors = made[1:, :-1]
    size = int(lapack.dormqr("L", "N", reflectors, scales, vectors[1:], -1)[1][0])
    vectors[1:] = lapack.dormqr("L", "N", reflectors, scales, vectors[1:], size)[0]
    return np.asarray(eigvalsh_tridiagonal(diagonal, off_diagonal), dtype=np.float64)[::-1], vectors[:, ::-1]


# --- noised symmetric matrices and products: how large noise is, what is there without it ---

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
    levels: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while levels and levels[-1][0] <= mean:
            before, many = levels.pop()
            mean, size = (before * many + mean * size) / (many + size), many + size
        levels.append((mean, size))
    means, sizes = zip(*levels, strict=True)
    return np.repeat(means, sizes)


class NoisedProduct(NamedTuple):
    """Y = AZ + noise of variance 1/``precision`` in every entry; ``basis`` is Z, d×r orthonormal."""

    product: Array
    basis: Array
    precision: float


class JointFit(NamedTuple):
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
    dim, span = len(products[0].product), None
    if moment is None:
        shown = np.linalg.qr(np.hstack([y.product - level * y.basis for y in products]))[0]
        if 2 * shown.shape[1] <= dim:  # the fit is in the few directions that products show
            span = shown
            products = [NoisedProduct(span.T @ y.product, span.T @ y.basis, y.precision) for y in products]
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
    return JointFit(found if span is None else span @ found, captured=strength * cosines, core=core)


def _left_factor(
    products: Sequence[NoisedProduct], moment: NoisedProduct | None, basis: Array, level: float
) -> tuple[Array, Array]:
    left, inner = np.zeros(basis.shape), np.zeros((basis.shape[1],) * 2)
    for y in products:
        turned = y.basis.T @ basis
        left += y.precision * ((y.product - level * y.basis) @ turned)
        inner += y.precision * (turned.T @ turned)
    if moment is not None:
        left += moment.precision * (moment.product @ basis - level * basis)
        inner += moment.precision * np.eye(len(inner))
    return left, inner


def _inverse_root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, values[-1] * 1e-9)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)
