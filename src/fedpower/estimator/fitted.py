"""From the outcome of a federation to the fitted attributes, in the units of the rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.data import RowTreatment
from fedpower.linalg import fix_signs
from fedpower.protocol.outcome import Outcome
from fedpower.protocol.private_study import noise_edge

Array = NDArray[np.float64]


def fitted_attributes(
    outcome: Outcome, treatment: RowTreatment, *, centers: bool
) -> dict[str, Any]:
    """Return the attributes of a fitted estimator by name.

    Rows were divided by their bound B and by the scales: variances are multiplied by B², means by both.
    Where rows were normalised there is no way back, and all is in units of unit rows.
    """
    solution, width = outcome.solution, outcome.study.n_features
    n_samples = sum(solution.sizes.values())
    bound = treatment.row_norm or 1.0
    values = np.maximum(solution.values[: solution.rank], 0.0)
    to_variance = bound**2 * n_samples / (n_samples - 1 if centers else n_samples)
    # Noise can make the parts add up to more than the total that was noised beside them.
    total = max(solution.total_variance, float(values.sum()))
    middle = np.zeros(width) if solution.center is None else np.asarray(solution.center)
    norm = float(np.linalg.norm(middle))
    spectrum = solution.values if solution.spectrum is None else solution.spectrum
    if not treatment.normalize:
        public = np.zeros(width) if treatment.center is None else treatment.center
        scale = np.ones(width) if treatment.scale is None else treatment.scale
        middle = public + middle * bound * scale
    return {
        "components_": fix_signs(solution.vectors[:, : solution.rank]).T.copy(),
        "explained_variance_": values * to_variance,
        "explained_variance_ratio_": values / total if total > 0 else np.full_like(values, np.nan),
        "spectrum_": spectrum * to_variance,
        **_without_noise(outcome, values, to_variance, total),
        "singular_values_": np.sqrt(values * n_samples) * bound,
        "mean_": middle,
        "noise_edge_": noise_edge(outcome.study, solution.sizes, norm) * to_variance,
        "n_components_": solution.rank,
        "n_samples_": n_samples,
        "silo_sizes_": dict(solution.sizes),
        "basis_": solution.basis,
        "n_steps_": solution.n_steps,
        "history_": [each.as_row() for each in outcome.rounds],
        "privacy_": outcome.privacy,
        "study_": outcome.study,
        "kernels_": outcome.kernels,
        "remarks_": list(solution.remarks),
    }


def _without_noise(
    outcome: Outcome, values: Array, to_variance: float, total: float
) -> dict[str, Any]:
    """Return what is known of the components without the noise; None where nothing is."""
    solution, signal = outcome.solution, outcome.solution.signal
    ratios = values / total if total > 0 else np.full_like(values, np.nan)
    if outcome.study.noise != "none":
        if signal is None:
            return dict.fromkeys(
                ("n_above_noise_", "denoised_variance_", "denoised_variance_ratio_")
            )
        values, ratios = np.full(solution.rank, np.nan), np.full(solution.rank, np.nan)
        told = min(solution.rank, signal.n_above)
        values[:told] = signal.denoised[:told]
        ratios[:told] = np.diff(signal.together[:told], prepend=0.0)
    return {
        "n_above_noise_": None if signal is None else signal.n_above,
        "denoised_variance_": values * to_variance,
        "denoised_variance_ratio_": ratios,
    }
