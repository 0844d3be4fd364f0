"""Averages over silos: weighted sums, and bases rotated to one another first [FP Alg. 2, 11–12]."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import misalignment, rotation
from fedpower.linalg.alignment import Alignment

Array = NDArray[np.float64]


def shares(names: Iterable[str], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the weight s_i/Σs of each of ``names``; they add up to one."""
    picked = {name: sizes[name] for name in names}
    total = sum(picked.values())
    return {name: size / total for name, size in picked.items()}


def weighted_sum(matrices: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """Return Σ w_i M_i."""
    total = np.zeros_like(next(iter(matrices.values())))
    for name, matrix in matrices.items():
        total += weights[name] * matrix
    return total


def align(
    bases: Mapping[str, Array],
    matrices: Mapping[str, Array],
    *,
    reference: Array,
    alignment: Alignment = "procrustes",
) -> tuple[dict[str, Array], float]:
    """Return ``matrices`` rotated by the D of their ``bases``, and ρ_t [FP eqs. 3.2, 3.3]."""
    turns = {
        name: np.eye(basis.shape[1])
        if basis is reference
        else rotation(alignment, basis, reference)
        for name, basis in bases.items()
    }
    spread = misalignment([bases[name] @ turn for name, turn in turns.items()], reference)
    return {name: matrices[name] @ turn for name, turn in turns.items()}, spread


def mean_trace(traces: Mapping[str, list[float]], sizes: Mapping[str, int]) -> float:
    """Return Σ w_i tr A_i over the silos that released it (each averaged over its rounds), or NaN."""
    weight = sum(sizes[name] for name in traces)
    if not weight:
        return float("nan")
    return sum(sizes[name] * float(np.mean(told)) for name, told in traces.items()) / weight
