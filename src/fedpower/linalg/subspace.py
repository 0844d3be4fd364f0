"""How far apart two subspaces are, and how much variance one captures."""

from typing import cast

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sin_theta(basis: Array, target: Array) -> float:
    """Return sin θ_k = ‖(I − ZZᵀ)U_k‖₂, the error of ``basis`` Z for ``target`` U_k [FP eq. 2.6].

    Both have orthonormal columns; Z may have more columns than U_k (r ≥ k) [FP Thm 3].
    """
    residual = target - basis @ (basis.T @ target)
    return min(float(np.linalg.norm(residual, 2)), 1.0)


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
    best = float(
        scipy.linalg.eigh(moment, eigvals_only=True, subset_by_index=[dim - count, dim - 1]).sum()
    )
    captured = float(np.einsum("ij,ij->", basis, moment @ basis))
    return captured / best if best > 0 else 1.0
