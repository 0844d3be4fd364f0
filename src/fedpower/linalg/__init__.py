"""The linear algebra of the paper: pure functions, no randomness, no input or output."""

from fedpower.linalg.alignment import ALIGNMENTS, rotation
from fedpower.linalg.diagnostics import (
    condition_number,
    heterogeneity,
    misalignment,
    noise_error_term,
    parallel_error_term,
    sampling_error_term,
)
from fedpower.linalg.orth import is_orthonormal, orth
from fedpower.linalg.ritz import fix_signs, ritz_pairs
from fedpower.linalg.subspace import (
    captured_variance_ratio,
    principal_angles,
    projection_distance,
    sin_theta,
)
from fedpower.linalg.triangle import lower_triangle

__all__ = [
    "ALIGNMENTS",
    "captured_variance_ratio",
    "condition_number",
    "fix_signs",
    "heterogeneity",
    "is_orthonormal",
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
]
