"""The linear algebra of the paper: pure functions, no randomness, no input or output."""

from fedpower.linalg.subspace import (
    ALIGNMENTS,
    captured_variance_ratio,
    condition_number,
    heterogeneity,
    is_orthonormal,
    misalignment,
    noise_error_term,
    orth,
    parallel_error_term,
    principal_angles,
    projection_distance,
    rotation,
    sampling_error_term,
    sin_theta,
)
from fedpower.linalg.symmetric import fix_signs, lower_of, lower_triangle, ritz_pairs, symmetric_of

__all__ = [
    "ALIGNMENTS",
    "captured_variance_ratio",
    "condition_number",
    "fix_signs",
    "heterogeneity",
    "is_orthonormal",
    "lower_of",
    "lower_triangle",
    "misalignment",
    "noise_error_term",
    "orth",
    "parallel_error_term",
    "principal_angles",
    "projection_distance",
    "ritz_pairs",
    "rotation",
    "sampling_error_term",
    "sin_theta",
    "symmetric_of",
]
