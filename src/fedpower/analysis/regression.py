"""``Regression``: one column regressed on others, with intervals: least squares, ridge or components."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array
from fedpower.options import setting
from fedpower.report.covariance import Covariance
from fedpower.report.page import Table
from fedpower.report.text import count, number, percent


class Regression(RegressorMixin, Analysis):
    """Regress a column on others: least squares, ridge, or principal component regression.

    Attributes
    ----------
    coef_, intercept_ : ndarray, float
        As in scikit-learn, in the units of the columns.
    standard_error_, low_, high_ : ndarray
        Standard errors and intervals of the coefficients, from sampling and privacy noise. NaN if ``clear_``
        is False.
    clear_ : bool
        Whether the noise is small enough for intervals: the smallest eigenvalue of the predictors, with the
        penalty, must exceed twice the largest one of the noise.
    r2_ : float
        Share of the target's variance that is explained.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import Regression
    >>> rows = np.random.default_rng(0).normal(size=(500, 3))
    >>> rows[:, 2] = rows[:, 0] - rows[:, 1]
    >>> Regression(2).fit(FedCovariance(epsilon=float("inf")).fit(rows)).coef_.round(6)
    array([ 1., -1.])
    """

    kind = "regression"

    target: str | int = setting(MISSING, "Column to predict.", kind=str, metavar="COLUMN")
    _: KW_ONLY
    predictors: Sequence[str | int] | None = setting(
        None, "Columns to predict it from; all others by default.", kind=list, metavar="A,B,..."
    )
    alpha: float = setting(0.0, "Ridge penalty, as in scikit-learn's Ridge.", "amount")
    n_components: int | None = setting(
        None, "Number of principal components to regress on.", "count", option="-k --components"
    )
    level: float = base.level()
    sampling: bool = base.sampling()

    def _fit(self, release: Covariance) -> None:
        if self.alpha and self.n_components is not None:
            raise InputError("alpha and n_components must not be used together, got both; leave one out")
        self._aim = release.column(self.target)
        given = range(release.n_features) if self.predictors is None else self.predictors
        self._places = [place for place in map(release.column, given) if place != self._aim]
        most = len(self._places)
        is_set = 0 < most == len(set(self._places))
        require(is_set, "predictors", "columns other than the target, each once", list(given))
        k = self.n_components
        require(k is None or k <= most, "n_components", f"at most {most}, the number of predictors", k)
        self._penalty = float(self.alpha) * release.divisor / release.n_samples
        covariance, self.n_floored_ = base.usable(release)
        values = self._statistic(covariance, release.mean)
        least, edge = self._least(release)
        self.clear_ = bool(release.noise_std == 0 or least > base.CLEAR * edge)
        errors = np.full_like(values, np.nan)
        if self.clear_:
            errors = self._standard_errors(self._statistic, covariance)
        self.coef_, self.intercept_ = values[:-2], float(values[-2])
        self.r2_ = float(np.clip(values[-1], 0.0, 1.0))
        self.intercept_error_ = float(errors[-2])
        self._set_intervals(self.coef_, errors[:-2])
        self.target_ = release.names[self._aim]
        self.predictors_ = [release.names[place] for place in self._places]
        self.feature_names_in_, self.n_features_in_ = np.asarray(self.predictors_, dtype=object), most

    def predict(self, X: ArrayLike) -> Array:
        """Predict the target from rows of the predictors, in their order, or from a table."""
        check_is_fitted(self)
        given = base.new_rows(X, self.feature_names_in_, "predictors for columns")
        return np.asarray(given @ self.coef_ + self.intercept_)

    def _statistic(self, covariance: Array, means: Array) -> Array:
        """Return coefficients, intercept and the share of variance explained."""
        inner = covariance[..., self._places, :][..., :, self._places]
        cross = covariance[..., self._places, self._aim]
        if self.n_components is None:
            penalised = inner + self._penalty * np.eye(inner.shape[-1])
            solved = np.asarray(np.linalg.solve(penalised, cross[..., None])[..., 0])
        else:
            values, vectors = np.linalg.eigh(inner)
            kept, axes = values[..., -self.n_components :], vectors[..., :, -self.n_components :]
            scores = np.einsum("...dk,...d->...k", axes, cross) / kept
            solved = np.einsum("...dk,...k->...d", axes, scores)
        intercept = means[..., self._aim] - np.sum(means[..., self._places] * solved, -1)
        fitted = np.einsum("...i,...ij,...j->...", solved, inner, solved)
        share = (2 * np.sum(cross * solved, -1) - fitted) / covariance[..., self._aim, self._aim]
        return np.concatenate([solved, intercept[..., None], share[..., None]], axis=-1)

    def _least(self, release: Covariance) -> tuple[float, float]:
        """Return the eigenvalue, or the gap, that is divided by, and the edge of its noise."""
        at, units = np.ix_(self._places, self._places), release.units[self._places]
        edge = float(release.noise_std * np.sqrt(2.0 * len(units)))
        if self.n_components is None:
            penalty = np.diag(self._penalty / (units**2 * release.divisor))
            return float(np.linalg.eigvalsh(release.pooled.covariance[at] + penalty)[0]), edge
        values = np.append(np.linalg.eigvalsh(release.covariance[at])[::-1], 0.0)
        gap = float(values[self.n_components - 1] - values[self.n_components])
        return gap, edge * float(units.max()) ** 2 * release.divisor

    def _page(self) -> Contents:
        method = "least squares" if self.alpha == 0 else f"ridge with alpha {number(self.alpha)}"
        if self.n_components is not None:
            method = f"through {count(self.n_components, 'component')}"
        yield f"{self.target_} by {count(len(self.coef_), 'column')}, {method}"
        yield (
            f"About {percent(self.r2_)} of the variance of {self.target_} is explained; the "
            f"intercept is {number(self.intercept_)}."
        )
        columns = {"Column": self.predictors_, "Coefficient": self.coef_, **self._interval_columns()}
        if self.clear_:
            columns["Differs"] = differs = (self.low_ > 0) | (self.high_ < 0)
            yield f"{int(differs.sum())} of {count(len(self.coef_), 'coefficient')} differ from 0."
            yield self._interval_sentence()
            title = "Coefficients with their intervals"
            yield base.interval_chart(title, self.predictors_, self.coef_, self.low_, self.high_)
        else:
            yield (
                "Intervals are unavailable: in some direction the predictors vary too little compared with "
                "the noise. Use a larger alpha, fewer predictors or components, or a larger epsilon."
            )
        yield Table("Coefficients", "coefficients.csv", columns)
