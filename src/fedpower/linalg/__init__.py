"""The linear algebra of the paper: pure functions, no randomness, no input or output."""

from fedpower.linalg.subspace import (
    ALIGNMENTS,
    is_orthonormal,
    misalignment,
    orth,
    principal_angles,
    sin_theta,
)
from fedpower.linalg.symmetric import blas, fix_signs, lower_of, ritz_pairs, symmetric_of

__all__ = [
    "ALIGNMENTS",
    "blas",
    "fix_signs",
    "is_orthonormal",
    "lower_of",
    "misalignment",
    "orth",
    "principal_angles",
    "ritz_pairs",
    "sin_theta",
    "symmetric_of",
]
