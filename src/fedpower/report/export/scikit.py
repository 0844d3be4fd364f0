"""A fit in scikit-learn's own objects: a plain PCA, behind steps that treat rows where there are any."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.report.findings import Findings

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

Array = NDArray[np.float64]


def as_sklearn(result: Findings) -> "PCA | Pipeline":
    """Return a fitted ``PCA``, or a ``Pipeline`` that ends in one where rows are scaled or normalised.

    Divisors cannot be folded into a single PCA: its ``transform`` would need components divided by them
    and its ``inverse_transform`` components multiplied by them, and neither are orthonormal. So a
    ``StandardScaler`` that holds the public divisors stands before it. Rows scaled to norm 1 pass
    a ``Normalizer``, from which there is no way back: that pipeline has no ``inverse_transform``.
    """
    from sklearn.decomposition import PCA  # noqa: PLC0415
    from sklearn.pipeline import Pipeline  # noqa: PLC0415
    from sklearn.preprocessing import Normalizer  # noqa: PLC0415

    scale, n_samples = result.scale, result.n_samples
    # what a normalised row is less is in the PCA's mean; the centre before that is a step of its own
    before = result.center if result.normalize else None
    steps: list[tuple[str, Any]] = []
    if scale is not None or before is not None:
        steps.append(("scale", _scaler(before, scale, n_samples)))
    if result.normalize:
        steps.append(("normalize", Normalizer(copy=True)))
    pca = PCA(n_components=result.n_components)
    pca.components_ = result.components.copy()
    pca.mean_ = result.mean.copy() if result.normalize or scale is None else result.mean / scale
    pca.explained_variance_ = result.explained_variance.copy()
    pca.explained_variance_ratio_ = result.explained_variance_ratio.copy()
    pca.singular_values_ = result.singular_values.copy()
    pca.noise_variance_ = _noise_variance(result)
    pca.n_components_ = result.n_components
    pca.n_samples_ = n_samples
    steps.append(("pca", pca))
    for _, step in steps:
        step.n_features_in_ = result.n_features
    if result.feature_names is not None:  # later steps get arrays, which have none
        steps[0][1].feature_names_in_ = np.asarray(result.feature_names, dtype=object)
    return pca if len(steps) == 1 else Pipeline(steps)


def _scaler(center: Array | None, scale: Array | None, n_samples: int) -> "StandardScaler":
    """Return what subtracts and divides by public numbers; it holds no statistic of the rows."""
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    scaler = StandardScaler(with_mean=center is not None, with_std=scale is not None)
    scaler.mean_ = None if center is None else center.copy()
    scaler.scale_ = None if scale is None else scale.copy()
    scaler.var_ = None
    scaler.n_samples_seen_ = n_samples
    return scaler


def _noise_variance(result: Findings) -> float:
    """Return the mean variance of what the components leave out [TB99]; NaN where it was not released."""
    n_left = min(result.n_samples, result.n_features) - result.n_components
    if n_left <= 0:
        return 0.0
    told = float(result.explained_variance_ratio.sum())
    if not told > 0:
        return float("nan")
    return max(0.0, float(result.explained_variance.sum()) * (1 / told - 1)) / n_left
