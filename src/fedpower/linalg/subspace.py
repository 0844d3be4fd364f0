"""Bases and subspaces: the paper's `orth`, rotations, distances, and the quantities of its analysis."""

import contextlib
import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.float64]

_ORTHONORMAL_TOLERANCE = 1e-6  # how far from the identity ``ZᵀZ`` may be, entry by entry

TALL = 8192
"""From so many rows on, what can be had from the small matrix YᵀY is: Y is read once and not r times."""

# The least eigenvalue of YᵀY, its columns made unit ones, from which
_SAFE_GRAM = 1e-10  # Cholesky's factor is trusted
_NEARLY_ORTHOGONAL = 0.1  # and one pass leaves columns orthonormal to 1e-14 or so


def orth(product: Array) -> Array:
    """Return an orthonormal basis Z of the columns of ``product`` by QR [FP eq. 2.1].

    R has a non-negative diagonal: for full column rank the factor is unique. A rank-deficient product still
    gives orthonormal columns: Householder QR completes the basis.
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

    The first leaves columns orthonormal to about eps over the least eigenvalue of YᵀY, the second to a few
    eps [Yamamoto et al. 2015]. Both triangles have positive diagonals, so it is the factor of `orth`.
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
    for start in range(0, len(basis), TALL):  # in place: a basis of wide rows is large
        part = basis[start : start + TALL]
        part[:] = part @ again
    return basis


def _inverse_triangle(columns: Array) -> tuple[Array | None, float]:
    """Return R⁻¹ of columns' QR factors, or None, and the least scaled eigenvalue of their Gram matrix."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        gram = columns.T @ columns
        lengths = np.sqrt(np.diagonal(gram))
        unit = gram / np.outer(lengths, lengths)
    in_range = (lengths > 1e-140) & (lengths < 1e140)
    least = float(np.linalg.eigvalsh(unit)[0]) if in_range.all() else 0.0
    if least < _SAFE_GRAM:
        return None, least
    upper = np.linalg.cholesky(unit).T
    inverse = np.linalg.solve(upper, np.eye(len(unit)))
    return np.asarray(inverse / lengths[:, np.newaxis]), least


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

    angles = scipy.linalg.subspace_angles(first, second)
    return cast("Array", np.sort(np.asarray(angles, dtype=np.float64)))


def misalignment(aligned: Sequence[Array], reference: Array) -> float:
    """Return ρ_t = max_i ‖Z_t^(i) D^(i) − Z_t^(1)‖₂ for already rotated bases [FP eq. 3.3]."""
    return float(max(spectral_norm(basis - reference) for basis in aligned))


# --- memory ---------------------------------------------------------------------------------------------

LARGE = 2**22  # bytes from which an array is worth a mapping of its own


def own_memory(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an empty array whose memory goes back to the system with it."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < LARGE or sys.platform == "win32":
        return np.empty(shape, kind)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)  # a tenth of the time, where there are some
    return np.frombuffer(pages, dtype=kind).reshape(shape)


def give_back() -> None:
    """Have the C library return unused memory to the system, where it can."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
