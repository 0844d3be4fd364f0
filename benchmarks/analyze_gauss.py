"""Analyze-Gauss: PCA by a trusted curator who holds all rows, the floor for every private method.

[DTTZ14] adds Gaussian noise to the pooled moment. Here its level is the exact calibration of the
product, so that what a federation loses against it is the price of trusting nobody, and nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.a9a_baselines import leading
from fedpower.privacy import noise_std

Array = NDArray[np.float64]


def analyze_gauss(
    moment: Array, rank: int, *, n_rows: int, epsilon: float, delta: float, rng: np.random.Generator
) -> Array:
    """Return the leading eigenvectors of the noised pooled moment.

    Neighbours: replace one row of norm at most 1; the moment's Frobenius sensitivity is √2/n.
    """
    std = curator_noise(n_rows=n_rows, epsilon=epsilon, delta=delta)
    return leading(moment + symmetric_noise(len(moment), std, rng), rank)[1]


def curator_noise(*, n_rows: int, epsilon: float, delta: float) -> float:
    """Return τ = (√2/n)·σ₁(ε, δ); 0 for ε = ∞."""
    return noise_std(
        "moment", epsilon=epsilon, delta=delta, n_rows=n_rows, n_steps=1, iteration_rank=1
    )


def symmetric_noise(width: int, std: float, rng: np.random.Generator) -> Array:
    """Return symmetric noise: N(0, τ²) on the diagonal, N(0, τ²/2) beside it.

    S ↦ (S_jj, √2·S_jl) is an isometry of the Frobenius norm, so this is noise of standard deviation
    τ in every coordinate of what is released.
    """
    drawn = rng.standard_normal((width, width)) * std
    return (drawn + drawn.T) / 2.0
