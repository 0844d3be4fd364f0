"""``ProcessMonitor``: limits for new rows, from a released covariance; rows are checked locally."""

from dataclasses import KW_ONLY
from functools import partial

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.exceptions import require
from fedpower.linalg import Array
from fedpower.protocol.pooled import unit_variances
from fedpower.protocol.solvers.angles import DETERMINED, moment_angles
from fedpower.report.covariance import Covariance
from fedpower.report.page import Table
from fedpower.report.text import count, number, percent


class ProcessMonitor(OutlierMixin, Analysis):
    """Detect unusual rows with Hotelling's T² and the squared prediction error (SPE).

    T² measures how far a row is within k components, and SPE how far it is outside of them. Columns are
    standardized with the released deviations. New rows are checked locally.

    Attributes
    ----------
    components_, explained_variance_ : ndarray
        Axes of the standardized columns, and their variances without noise.
    t2_limit_ : float
        Limit of T²: k(n² − 1)/(n(n − k)) F_{k, n−k} [J91].
    spe_limit_ : float
        Limit of SPE: gχ²_h from the variances outside the components, without noise [B54].
    component_angles_, subspace_angles_ : ndarray of shape (k,)
        As in `FedPCA`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import ProcessMonitor
    >>> rows = np.random.default_rng(0).normal(size=(500, 4))
    >>> monitor = ProcessMonitor(2).fit(FedCovariance(epsilon=float("inf")).fit(rows))
    >>> monitor.predict([[0, 0, 0, 0], [9, 9, 9, 9]]).tolist()
    [1, -1]
    """

    kind = "monitor"

    n_components: int = base.components()
    _: KW_ONLY
    level: float = base.level(0.99, "Share of usual rows within each limit.")

    def _fit(self, release: Covariance) -> None:
        d, n, k = release.n_features, release.n_samples, self.n_components
        most = min(d, n) - 1
        require(k <= most, "n_components", f"at most {most}, below the {d} columns", k)
        covariance, self.n_floored_ = base.usable(release)
        self.mean_, self.scale_ = release.mean, np.sqrt(np.diagonal(covariance))
        values, vectors = base.eigenpairs(covariance / np.outer(self.scale_, self.scale_))
        gains = unit_variances(release.noise_std)
        noised = partial(moment_angles, release.pooled, k, pairs=(values, vectors), gains=gains)
        found = self._set_angles(noised, values, k)
        self.components_, self.spectrum_ = np.asarray(vectors[:, :k].T), values
        self.explained_variance_ = np.clip(found.variances[:k], values[:k] / 2.0, values[:k])
        first = float(np.sum(values[k:]))
        noise = self._noise(release, covariance, vectors[:, k:])
        second = max(float(np.sum(values[k:] ** 2)) - noise, first**2 / (d - k))
        spread = scipy.stats.f.ppf(self.level, k, n - k)
        self.t2_limit_ = float(k * (n**2 - 1) / (n * (n - k)) * spread)
        self.spe_limit_ = float(second / first * scipy.stats.chi2.ppf(self.level, first**2 / second))

    def _noise(self, release: Covariance, covariance: Array, rest: Array) -> float:
        """Return what noise adds to the residual's θ₂ on average."""
        if release.noise_std == 0:
            return 0.0
        axes = rest / self.scale_[:, None]
        squares = [
            np.sum((axes.T @ matrices @ axes) ** 2, axis=(1, 2))
            for matrices, _ in base.draws(release, covariance, sampling=False)
        ]
        return float(np.mean(np.concatenate(squares)))

    def statistics(self, X: ArrayLike) -> Array:
        """Return T² and SPE of rows, in two columns. This is a local computation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New rows in the units of the release. The columns of a table are matched by name.
        """
        check_is_fitted(self)
        scaled = (base.new_rows(X, self.feature_names_in_) - self.mean_) / self.scale_
        scores = scaled @ self.components_.T
        residuals = scaled - scores @ self.components_
        t2 = np.sum(scores**2 / self.explained_variance_, axis=1)
        return np.column_stack([t2, np.sum(residuals**2, axis=1)])

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return −1 for rows above a limit and 1 for others, as outlier detectors in scikit-learn do."""
        beyond = self.statistics(X) > [self.t2_limit_, self.spe_limit_]
        return np.where(beyond.any(axis=1), -1, 1)

    def _page(self) -> Contents:
        exact = self.release_.noise_std == 0
        yield f"Limits for new rows of {count(len(self.mean_), 'column')}"
        yield (
            f"A usual row has T² ≤ {number(self.t2_limit_)} and SPE ≤ {number(self.spe_limit_)}, each with "
            f"probability {percent(self.level)}."
        )
        if exact:
            yield "The limits are exact, because no noise was added."
        yield from self._angle_sentences(len(self.mean_))
        if not exact and self.subspace_angles_[-1] > DETERMINED:
            yield "T² includes directions that are not determined; use fewer components."
        within = f"distance within {count(len(self.components_), 'component')}"
        limits = {
            "Statistic": ("T²", "SPE"),
            "Limit": (self.t2_limit_, self.spe_limit_),
            "Meaning": (within, "distance from them"),
        }
        yield Table("Limits", "limits.csv", limits)
        columns = {"Column": self.columns_, "Mean": self.mean_, "Deviation": self.scale_}
        yield Table("Columns", "columns.csv", columns)
        caption = "Variances of standardized columns; T² uses the components."
        yield base.variance_chart(self.spectrum_, self.component_angles_ <= DETERMINED, caption)
