"""Rotations that bring one silo's basis to a reference before averaging [FP eq. 3.2]."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
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
