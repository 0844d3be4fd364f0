"""Bases and subspaces: the paper's `orth`, rotations, distances, and the quantities of its analysis."""

from collections.abc import Callable, Sequence
from typing import Literal, cast

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedpower.linalg.memory import own_memory

Array = NDArray[np.float64]

_ORTHONORMAL_TOLERANCE = 1e-6
"""How far from the identity ``ZᵀZ`` may be, entry by entry, for ``Z`` to count as orthonormal."""

TALL = 8192
"""From so many rows on, what can be had from the small matrix YᵀY is: Y is read once and not r times."""

_SAFE_GRAM = 1e-10
"""The least eigenvalue of YᵀY, its columns made unit ones, from which Cholesky's factor is trusted."""

_NEARLY_ORTHOGONAL = 0.1
"""The same, from which one pass leaves columns orthonormal to 1e-14 or so."""


def orth(product: Array) -> Array:
    """Return an orthonormal basis Z of the columns of ``product`` by QR [FP eq. 2.1].

    The QR factor with a non-negative diagonal of R is taken: for full column rank it is unique, so the
    same product gives the same basis whichever way it was summed. A rank-deficient product (a silo with
    fewer rows than columns of the basis, a zero product) still gives orthonormal columns: Householder QR
    completes the basis.
    """
    if len(product) >= TALL:
        found = _cholesky_qr(product)
        if found is not None:
            return found
    basis, triangle = np.linalg.qr(product)
    signs = np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    return np.ascontiguousarray(basis * signs)


def _cholesky_qr(product: Array) -> Array | None:
    """Return the same factor by Cholesky's of YᵀY, twice; None where columns nearly depend.

    The first factor leaves columns orthonormal to about eps over the least eigenvalue of YᵀY, the second
    to a few eps [Yamamoto et al. 2015]; where columns are nearly orthogonal the first
    will do. Both triangles have positive diagonals, so it is the factor of `orth`.
    """
    inverse, least = _inverse_triangle(product)
    if inverse is None:
        return None
    basis: Array = np.matmul(product, inverse, out=own_memory(product.shape))
    if least > _NEARLY_ORTHOGONAL:
        return basis
    again, _ = _inverse_triangle(basis)
    if again is None:
        return None
    multiply_in_place(basis, again)
    return basis


def _inverse_triangle(columns: Array) -> tuple[Array | None, float]:
    """Return R⁻¹ of the QR factors of ``columns`` from their Gram matrix, None where it is not safe.

    And the least eigenvalue of that matrix, its diagonal made 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return inverse_triangle_of(columns.T @ columns)


def inverse_triangle_of(gram: Array) -> tuple[Array | None, float]:
    """Return the same from the Gram matrix of the columns."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = np.sqrt(np.diagonal(gram))
        unit = gram / np.outer(lengths, lengths)
    in_range = (lengths > 1e-140) & (lengths < 1e140)
    least = float(np.linalg.eigvalsh(unit)[0]) if in_range.all() else 0.0
    if least < _SAFE_GRAM:
        return None, least
    upper = np.linalg.cholesky(unit).T
    inverse = scipy.linalg.solve_triangular(upper, np.eye(len(unit)))
    return np.asarray(inverse / lengths[:, np.newaxis]), least


def multiply_in_place(columns: Array, matrix: Array) -> None:
    """Multiply tall ``columns`` by a small matrix where they lie: a basis of wide rows is large."""
    for start in range(0, len(columns), TALL):
        part = columns[start : start + TALL]
        part[:] = part @ matrix


def spectral_norm(matrix: Array) -> float:
    """Return ‖matrix‖₂, the largest singular value."""
    if len(matrix) < TALL or not matrix.shape[1]:
        return float(np.linalg.norm(matrix, 2))
    peak = max(float(matrix.max()), -float(matrix.min()))
    if not 1e-140 < peak < 1e140:  # squares would leave float64, or the matrix is zero
        return float(np.linalg.norm(matrix, 2))
    return float(np.sqrt(np.linalg.eigvalsh(matrix.T @ matrix)[-1]))


def is_orthonormal(basis: Array, tolerance: float = _ORTHONORMAL_TOLERANCE) -> bool:
    """Return whether the columns of ``basis`` are finite and orthonormal to ``tolerance``."""
    # A number that is not finite leaves the square of its column not finite, and no comparison holds.
    with np.errstate(over="ignore", invalid="ignore"):
        gram = basis.T @ basis
        return bool(np.abs(gram - np.eye(gram.shape[0])).max(initial=0.0) <= tolerance)


Alignment = Literal["procrustes", "sign", "identity"]


def procrustes(basis: Array, reference: Array) -> Array:
    """Return D = argmin over orthogonal D of ‖basis·D − reference‖_F [FP eq. 3.2, F = O_r].

    D = W₁W₂ᵀ from the SVD W₁ΛW₂ᵀ of basisᵀ·reference [Schönemann 1966].

    Deviation: Lemma 17 of the paper's appendix prints W₁W₂ for an SVD written W₁ΣW₂; the two agree
    once W₂ there is read as the transposed factor.
    """
    left, _, right_t = np.linalg.svd(basis.T @ reference)
    return np.asarray(left @ right_t)


def sign(basis: Array, reference: Array) -> Array:
    """Return the diagonal ±1 matrix that best aligns column by column [LocalPower, sign-fixing]."""
    inner = np.einsum("ij,ij->j", basis, reference)
    return np.diag(np.where(inner < 0, -1.0, 1.0))


def identity(basis: Array, reference: Array) -> Array:
    """Return the identity: no alignment [FP eq. 3.2, F = {I_r}]."""
    del reference
    return np.eye(basis.shape[1])


ALIGNMENTS: dict[Alignment, Callable[[Array, Array], Array]] = {
    "procrustes": procrustes,
    "sign": sign,
    "identity": identity,
}


def rotation(alignment: Alignment, basis: Array, reference: Array) -> Array:
    """Return the r×r orthogonal D that ``alignment`` gives for ``basis`` against ``reference``."""
    return ALIGNMENTS[alignment](basis, reference)


def sin_theta(basis: Array, target: Array) -> float:
    """Return sin θ_k = ‖(I − ZZᵀ)U_k‖₂, the error of ``basis`` Z for ``target`` U_k [FP eq. 2.6].

    Both have orthonormal columns; Z may have more columns than U_k (r ≥ k) [FP Thm 3].
    """
    residual = target - basis @ (basis.T @ target)
    return min(spectral_norm(residual), 1.0)


def projection_distance(basis: Array, target: Array) -> float:
    """Return ‖ZZᵀ − UUᵀ‖₂ for two orthonormal bases of the same size [FP Def. 3]."""
    return min(float(np.linalg.norm(basis @ basis.T - target @ target.T, 2)), 1.0)


def principal_angles(first: Array, second: Array) -> Array:
    """Return all principal angles in radians, smallest first [FP App. E]."""
    angles = scipy.linalg.subspace_angles(first, second)
    return cast("Array", np.sort(np.asarray(angles, dtype=np.float64)))


def captured_variance_ratio(basis: Array, moment: Array, rank: int | None = None) -> float:
    """Return tr(ZᵀAZ) divided by what the best ``rank``-dimensional subspace of A captures.

    ``rank`` is the number of columns of Z unless given; the ratio is 1 for the leading eigenspace.
    """
    count = basis.shape[1] if rank is None else rank
    dim = moment.shape[0]
    best = float(scipy.linalg.eigh(moment, eigvals_only=True, subset_by_index=[dim - count, dim - 1]).sum())
    captured = float(np.einsum("ij,ij->", basis, moment @ basis))
    return captured / best if best > 0 else 1.0


def heterogeneity(moments: Sequence[Array], pooled: Array) -> float:
    """Return η = max_i ‖A_i − A‖₂ / ‖A‖₂ [FP Def. 4]."""
    norm = np.linalg.norm(pooled, 2)
    return float(max(np.linalg.norm(moment - pooled, 2) for moment in moments) / norm)


def misalignment(aligned: Sequence[Array], reference: Array) -> float:
    """Return ρ_t = max_i ‖Z_t^(i) D^(i) − Z_t^(1)‖₂ for already rotated bases [FP eq. 3.3]."""
    return float(max(spectral_norm(basis - reference) for basis in aligned))


def condition_number(pooled: Array) -> float:
    """Return κ = ‖A‖₂‖A†‖₂, the ratio of the largest to the smallest non-zero eigenvalue [FP §2.6]."""
    values = np.linalg.svd(pooled, compute_uv=False)
    nonzero = values[values > values[0] * pooled.shape[0] * np.finfo(np.float64).eps]
    return float(nonzero[0] / nonzero[-1]) if nonzero.size else float("nan")


def noise_error_term(
    *,
    noise_std: float,
    gap: float,
    n_features: int,
    n_steps: int,
    n_averaged: int,
    max_misalignment: float,
    partial: bool = False,
) -> float:
    """Return I₁, the error from the privacy noise [FP eq. 3.4; eq. 3.8 when ``partial``].

    ``gap`` is σ_k − σ_{k+1}; ``n_averaged`` is m, or K under partial participation.
    """
    log_term = np.log(n_features * n_steps)
    spread = max(np.sqrt(n_features * log_term / n_averaged), log_term / n_averaged)
    return float(_prefactor(gap, max_misalignment, n_averaged, partial) * noise_std * spread)


def parallel_error_term(
    *,
    largest_eigenvalue: float,
    gap: float,
    heterogeneity: float,
    max_misalignment: float,
    n_averaged: int,
    partial: bool = False,
) -> float:
    """Return I₂, the error from local steps [FP eq. 3.5; eq. 3.9 when ``partial``]."""
    bias = heterogeneity + (2 + heterogeneity) * max_misalignment
    factor = _prefactor(gap, max_misalignment, n_averaged, partial)
    return float(factor * 2 * largest_eigenvalue * bias)


def sampling_error_term(
    *,
    largest_eigenvalue: float,
    gap: float,
    n_features: int,
    n_steps: int,
    n_participants: int,
    max_misalignment: float,
) -> float:
    """Return I₃, the error from sampling K silos a round [FP eq. 3.10]."""
    log_term = np.log(n_features * n_steps)
    spread = max(np.sqrt(log_term / n_participants), log_term / n_participants)
    factor = _prefactor(gap, max_misalignment, n_participants, partial=True)
    return float(factor * largest_eigenvalue * spread)


def _prefactor(gap: float, max_misalignment: float, n_averaged: int, partial: bool) -> float:
    """Return (σ_k − σ_{k+1})⁻¹ / (1 − c·max ρ_t), c = 1 − 1/m in full and 1 in partial participation.

    Where the denominator is not positive the theorem says nothing: the term is then infinite.
    """
    share = 1.0 if partial else 1 - 1 / n_averaged
    denominator = gap * (1 - share * max_misalignment)
    return 1 / denominator if denominator > 0 else float("inf")
