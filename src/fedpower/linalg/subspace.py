"""Bases and subspaces: the paper's `orth`, rotations, distances, and the quantities of its analysis."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ORTHONORMAL_TOLERANCE = 1e-6  # how far from the identity ``ZᵀZ`` may be, entry by entry

TALL = 8192
"""From so many rows on, what can be had from the small matrix YᵀY is: Y is read once and not r times."""

_SAFE_GRAM = 1e-10  # least eigenvalue of YᵀY, its columns made unit ones, from which its factor is trusted


def orth(product: Array) -> Array:
    """Return an orthonormal basis Z of the columns of ``product`` by QR [FP eq. 2.1].

    R has a non-negative diagonal: for full column rank the factor is unique. A rank-deficient product still
    gives orthonormal columns: Householder QR completes the basis.
    """
    if len(product) >= TALL:
        tall = _cholesky_qr(product)
        if tall is not None:
            return tall
    basis, triangle = np.linalg.qr(product)
    signs = np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    return np.ascontiguousarray(basis * signs)


def _cholesky_qr(columns: Array) -> Array | None:
    """Return the same factor by Cholesky's of YᵀY; None where columns nearly depend.

    Once leaves columns orthonormal to about eps over the least eigenvalue of YᵀY, twice to a few eps
    [Yamamoto et al. 2015]. Both triangles have positive diagonals, so it is the factor of `orth`.
    """
    for _ in range(2):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            gram = columns.T @ columns
            lengths = np.sqrt(np.diagonal(gram))
            unit = gram / np.outer(lengths, lengths)
        in_range = (lengths > 1e-140) & (lengths < 1e140)
        if not in_range.all() or np.linalg.eigvalsh(unit)[0] < _SAFE_GRAM:
            return None
        columns = columns @ (np.linalg.inv(np.linalg.cholesky(unit).T) / lengths[:, np.newaxis])
    return columns


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
    return min(spectral_norm(residual), 1.0)


def principal_angles(first: Array, second: Array) -> Array:
    """Return all principal angles in radians, smallest first [FP App. E]."""
    import scipy.linalg  # noqa: PLC0415 - commands that compare nothing start without it

    return np.sort(np.asarray(scipy.linalg.subspace_angles(first, second), dtype=np.float64))


def misalignment(aligned: Sequence[Array], reference: Array) -> float:
    """Return ρ_t = max_i ‖Z_t^(i) D^(i) − Z_t^(1)‖₂ for already rotated bases [FP eq. 3.3]."""
    return float(max(spectral_norm(basis - reference) for basis in aligned))
