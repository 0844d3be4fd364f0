"""What every solver ends with."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.protocol.solvers.signal import Signal

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What an iteration ends with.

    Attributes
    ----------
    basis
        Z̄_T, d×r orthonormal: the paper's output.
    values, vectors
        Estimates of the leading eigenvalues and eigenvectors in the span of ``basis``.
    rank
        k; found by the run where a fraction of variance was asked for.
    total_variance
        tr A over the silos that released it, or NaN.
    center
        The pooled mean, or None.
    sizes
        s_i by silo.
    n_steps, change, converged
        Steps taken, the last round's sin θ, and whether it was within ``tol``.
    completeness
        The least share of the silos' weight that took part in a pooled product; below 1 where silos
        were missing and the solver filled in what they would have said.
    spectrum
        All eigenvalues of the pooled moment, where the whole of it is known; else None.
    signal
        What stands above the noise, where that can be told; else None.
    remarks
        Sentences on numbers that are not to be trusted, and on silos that look like one.
    """

    basis: Array
    values: Array
    vectors: Array
    rank: int
    total_variance: float
    center: Array | None
    sizes: dict[str, int]
    n_steps: int
    change: float
    converged: bool
    completeness: float = 1.0
    spectrum: Array | None = None
    signal: Signal | None = None
    remarks: tuple[str, ...] = ()


def rank_for(fraction: float, values: Array, total: float) -> int:
    """Return the least k whose leading values exceed ``fraction`` of the total variance."""
    kept = np.maximum(values, 0.0)
    cumulative = np.cumsum(kept) / total if total > 0 else np.ones_like(kept)
    return min(int(np.searchsorted(cumulative, fraction, side="right")) + 1, kept.size)
