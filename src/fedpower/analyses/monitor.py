"""``ProcessMonitor``: limits that new rows should keep, from a released moment; flags at home."""

from typing import Self

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analyses.rows import brought
from fedpower.analyses.spread import correlation_shift, draws, quantile, require_centred, usable
from fedpower.errors import InputError
from fedpower.protocol.solvers.angles import CONFIDENCE, DETERMINED, exact_angles, moment_angles
from fedpower.protocol.solvers.gains import unit_variances
from fedpower.report.charts import scree
from fedpower.report.moment import Moment
from fedpower.report.page import Account, Table
from fedpower.report.record import plain
from fedpower.report.text import count, number, percent
from fedpower.report.view import angle_sentences

Array = NDArray[np.float64]


class ProcessMonitor(OutlierMixin, BaseEstimator):
    """Hotelling's T² within k components and the squared prediction error (SPE) beside them, with limits.

    Columns are standardised by the released deviations. New rows are looked at where they are: nothing of
    them leaves.

    Parameters
    ----------
    n_components : int
        k.
    level : float, default=0.99
        The share of rows like those of the release that each limit should let pass.

    Attributes
    ----------
    components_, explained_variance_ : ndarray
        Axes of standardised columns, and the variances that T² divides by: without what noise adds to
        them.
    t2_limit_ : float
        k(n² − 1)/(n(n − k)) F_{k, n−k}, of one further row [J91].
    spe_limit_ : float
        gχ²_h, with g = θ₂/θ₁, h = θ₁²/θ₂ of the variances beside the components [B54]; what noise adds to
        θ₂ is taken off.
    component_angles_, subspace_angles_ : ndarray of shape (k,)
        Degrees by which each component, and the subspace of the first, the first two, …, may be off at
        90% confidence, as of `FedPCA`. Up to 45° they are determined.
    moment_ : Moment
        What it was computed from.
    """

    def __init__(self, n_components: int, *, level: float = 0.99) -> None:
        self.n_components = n_components
        self.level = level

    def fit(self, moment: Moment, y: object = None) -> Self:
        """Set the limits from a released moment and return itself."""
        del y
        require_centred(moment)
        quantile(self.level)
        d, n, k = moment.n_features, moment.n_samples, self.n_components
        if not (isinstance(k, int) and 1 <= k < min(d, n)):
            raise InputError(
                f"n_components must be a whole number below the {d} columns, got {k!r}; choose fewer"
            )
        found = usable(moment)
        self.mean_ = moment.mean
        self.scale_ = np.sqrt(np.diagonal(found.covariance))
        values, vectors = np.linalg.eigh(found.covariance / np.outer(self.scale_, self.scale_))
        values, vectors = values[::-1], vectors[:, ::-1]
        axes, rest = vectors[:, :k], vectors[:, k:]
        angles = (
            moment_angles(
                moment.pooled,
                k,
                pairs=(values, vectors),
                gains=unit_variances(moment.noise_std),
                cut=correlation_shift(moment),
            )
            if moment.noise_std > 0
            else exact_angles(values, k, n_features=d)
        )
        self.component_angles_, self.subspace_angles_ = angles.components, angles.subspaces
        variances = np.clip(angles.variances[:k], values[:k] / 2.0, values[:k])
        beside = self._noise(moment, found.covariance, rest)
        self.components_, self.explained_variance_ = np.asarray(axes.T), variances
        first = float(np.sum(values[k:]))
        second = max(float(np.sum(values[k:] ** 2)) - beside, first**2 / (d - k))
        spread = scipy.stats.f.ppf(self.level, k, n - k)
        self.t2_limit_ = float(k * (n**2 - 1) / (n * (n - k)) * spread)
        self.spe_limit_ = float(second / first * scipy.stats.chi2.ppf(self.level, first**2 / second))
        self.spectrum_ = values
        self.feature_names_in_ = np.asarray(moment.names, dtype=object)
        self.n_features_in_ = d
        self.n_floored_, self._remark, self.moment_ = found.n_floored, found.remark, moment
        return self

    def _noise(self, moment: Moment, covariance: Array, rest: Array) -> float:
        """Return what noise adds to the residual's θ₂ on average."""
        if moment.noise_std == 0:
            return 0.0
        axes = rest / self.scale_[:, None]
        squares = [
            np.sum((axes.T @ matrices @ axes) ** 2, axis=(1, 2))
            for matrices, _ in draws(moment, covariance, sampling=False)
        ]
        return float(np.mean(np.concatenate(squares)))

    def statistics(self, X: ArrayLike) -> Array:
        """Return T² and SPE of rows, a column each: a local computation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New rows in the units of the release; a table's columns are matched by name.
        """
        check_is_fitted(self)
        given = brought(X, self.feature_names_in_, what="columns of the moment", advice="bring them")
        scaled = (given - self.mean_) / self.scale_
        scores = scaled @ self.components_.T
        beside = scaled - scores @ self.components_
        t2 = np.sum(scores**2 / self.explained_variance_, axis=1)
        return np.column_stack([t2, np.sum(beside**2, axis=1)])

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return −1 for rows beyond either limit and 1 for others, as scikit-learn's detectors do."""
        beyond = self.statistics(X) > [self.t2_limit_, self.spe_limit_]
        return np.where(beyond.any(axis=1), -1, 1)

    def account(self) -> Account:
        """Return what was found, for a terminal, a program and a page."""
        k, noised = len(self.components_), self.moment_.noise_std > 0
        fixed = self.component_angles_ <= DETERMINED
        said = angle_sentences(
            self.component_angles_, self.subspace_angles_, len(self.moment_.names), exact=not noised
        )
        if not noised:
            said.insert(0, "No noise was added, so the limits are those of the rows themselves.")
        elif self.subspace_angles_[-1] > DETERMINED:
            said.append("T² measures directions that are not determined: take fewer components.")
        limits = (
            ("T²", self.t2_limit_, f"distance within the {count(k, 'component')}"),
            ("SPE", self.spe_limit_, "distance from them"),
        )
        chart = scree(
            self.spectrum_[:k].tolist(), determined=fixed.tolist(), beyond=self.spectrum_[k : k + 20].tolist()
        )
        names = self.moment_.names
        return Account(
            kind="monitor",
            title=f"Limits for new rows of {count(len(names), 'column')}",
            sentences=(
                f"A row like those of the release keeps T² ≤ {number(self.t2_limit_)} and SPE ≤ "
                f"{number(self.spe_limit_)} with probability {percent(self.level)} each.",
                *said,
                *self._remark,
            ),
            tables=(
                Table(
                    title="Limits",
                    headings=("Statistic", "Limit", "What it measures"),
                    rows=limits,
                    file="limits.csv",
                ),
                Table(
                    title="Columns",
                    headings=("Column", "Mean", "Deviation"),
                    rows=tuple(zip(names, self.mean_.tolist(), self.scale_.tolist(), strict=True)),
                    file="columns.csv",
                ),
            ),
            pictures=((chart, "Variances of standardised columns; T² uses the components."),),
            facts={
                "columns": list(names),
                "mean": plain(self.mean_),
                "scale": plain(self.scale_),
                "components": plain(self.components_),
                "explained_variance": plain(self.explained_variance_),
                "t2_limit": self.t2_limit_,
                "spe_limit": self.spe_limit_,
                "level": self.level,
                "component_angles": plain(self.component_angles_),
                "subspace_angles": plain(self.subspace_angles_),
                "confidence": CONFIDENCE,
                "n_floored": self.n_floored_,
            },
        )
