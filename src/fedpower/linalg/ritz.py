"""From a converged basis and its product to eigenvalues and components."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def ritz_pairs(basis: Array, product: Array, shift: float = 0.0) -> tuple[Array, Array]:
    """Return (values, vectors): estimates of the leading eigenpairs from ``product`` ≈ (A + cI)·Z_prev.

    With Y the product of the last step and Z an orthonormal basis of its columns, the singular values
    of ZᵀY = orth(Y)ᵀY are those of Y, and Z times its left singular vectors are the left singular
    vectors of Y: for Y = (A + cI)Z_prev this is Rayleigh–Ritz for (A + cI)² in span(Z_prev), followed
    by one more power step. Values err quadratically in the angle and are corrected by the shift c.

    Parameters
    ----------
    basis
        Z, d×r, orthonormal: the output subspace.
    product
        Y, d×r: the last aggregated product.
    shift
        c, the multiple of the identity that was added to A.
    """
    left, values, _ = np.linalg.svd(basis.T @ product)
    return values - shift, basis @ left


def fix_signs(vectors: Array) -> Array:
    """Return ``vectors`` with each column's entry of largest magnitude made positive.

    Decided on the loadings alone, so that it costs no look at the rows; ties go to the first entry.
    """
    # Two entries that tie but for rounding must not decide by their last bits.
    magnitudes = np.abs(vectors)
    tallest = magnitudes.max(axis=0, initial=0.0)
    pivots = np.argmax(magnitudes >= tallest * (1 - 1e-8), axis=0)
    signs = np.where(vectors[pivots, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    return vectors * signs
