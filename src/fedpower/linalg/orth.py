"""Orthonormal bases: the paper's `orth`."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ORTHONORMAL_TOLERANCE = 1e-6
"""How far from the identity ``ZᵀZ`` may be, entry by entry, for ``Z`` to count as orthonormal."""


def orth(product: Array) -> Array:
    """Return an orthonormal basis Z of the columns of ``product`` by QR [FP eq. 2.1].

    The QR factor with a non-negative diagonal of R is taken: for full column rank it is unique, so the
    same product gives the same basis whichever way it was summed. A rank-deficient product (a silo with
    fewer rows than columns of the basis, a zero product) still gives orthonormal columns: Householder QR
    completes the basis.
    """
    basis, triangle = np.linalg.qr(product)
    signs = np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    return np.ascontiguousarray(basis * signs)


def is_orthonormal(basis: Array, tolerance: float = ORTHONORMAL_TOLERANCE) -> bool:
    """Return whether the columns of ``basis`` are finite and orthonormal to ``tolerance``."""
    if not np.isfinite(basis).all():
        return False
    gram = basis.T @ basis
    return bool(np.abs(gram - np.eye(gram.shape[0])).max(initial=0.0) <= tolerance)
