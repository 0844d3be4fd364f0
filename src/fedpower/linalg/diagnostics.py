"""The quantities of the paper's analysis: η, ρ_t, κ and the error terms I₁, I₂, I₃.

The error terms are printed in the paper up to universal constants; they are given here without any, so
they order settings and show scaling but do not bound a measured error by themselves.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def heterogeneity(moments: Sequence[Array], pooled: Array) -> float:
    """Return η = max_i ‖A_i − A‖₂ / ‖A‖₂ [FP Def. 4]."""
    norm = np.linalg.norm(pooled, 2)
    return float(max(np.linalg.norm(moment - pooled, 2) for moment in moments) / norm)


def misalignment(aligned: Sequence[Array], reference: Array) -> float:
    """Return ρ_t = max_i ‖Z_t^(i) D^(i) − Z_t^(1)‖₂ for already rotated bases [FP eq. 3.3]."""
    return float(max(np.linalg.norm(basis - reference, 2) for basis in aligned))


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
