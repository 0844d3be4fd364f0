"""``RidgeRegression`` and ``ComponentRegression``: a column explained by others, with intervals."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analyses.rows import brought
from fedpower.analyses.spread import (
    Statistic,
    clipping_remark,
    clipping_share,
    quantile,
    require_centred,
    standard_errors,
    usable,
)
from fedpower.errors import InputError
from fedpower.report.charts import intervals
from fedpower.report.moment import Moment
from fedpower.report.page import Account, Table
from fedpower.report.record import plain
from fedpower.report.text import count, number, percent

Array = NDArray[np.float64]

_CLEAR = 2.0
"""Times the noise's edge, below which nothing is divided by that intervals are then given for."""


class _Regression(RegressorMixin, BaseEstimator):
    """What regressions on a released moment share."""

    target: str | int
    predictors: Sequence[str | int] | None
    level: float
    sampling: bool
    coef_: Array
    intercept_: float
    moment_: Moment

    def fit(self, moment: Moment, y: object = None) -> Self:
        """Regress the target on the predictors from a released moment and return itself."""
        del y
        require_centred(moment)
        width, found = quantile(self.level), usable(moment)
        self._aim = moment.column(self.target)
        given = range(moment.n_features) if self.predictors is None else self.predictors
        self._places = [place for place in (moment.column(each) for each in given) if place != self._aim]
        if not self._places or len(set(self._places)) < len(self._places):
            raise InputError(
                f"predictors must be columns other than the target, each once, got {list(given)!r}; name some"
            )
        statistic = self._statistic(moment)
        values = statistic(found.covariance, moment.mean)
        least, edge = self._least(moment)
        self.clear_ = moment.noise_std == 0 or least > _CLEAR * edge
        errors = standard_errors(statistic, moment, found.covariance, sampling=self.sampling)
        if not self.clear_:
            errors = np.full_like(errors, np.nan)
        self.coef_, self.intercept_ = values[:-2], float(values[-2])
        self.r2_ = float(np.clip(values[-1], 0.0, 1.0))
        self.standard_error_, self.intercept_error_ = errors[:-2], float(errors[-2])
        self.low_, self.high_ = self.coef_ - width * errors[:-2], self.coef_ + width * errors[:-2]
        self.feature_names_in_ = np.asarray([moment.names[place] for place in self._places], dtype=object)
        self.n_features_in_ = len(self._places)
        self.n_floored_, self._remark = found.n_floored, found.remark
        self.clipping_share_ = clipping_share(moment)
        self.moment_ = moment
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return what the target would be of rows of the predictors, in their order; or of a table."""
        check_is_fitted(self)
        given = brought(X, self.feature_names_in_, what="predictors for columns", advice="leave others out")
        return np.asarray(given @ self.coef_ + self.intercept_)

    def _statistic(self, moment: Moment) -> Statistic:
        raise NotImplementedError

    def _least(self, moment: Moment) -> tuple[float, float]:
        raise NotImplementedError

    def _told(self) -> str:
        raise NotImplementedError

    def _block(self, covariance: Array) -> tuple[Array, Array]:
        """Return the predictors' covariance and theirs with the target."""
        inner = covariance[..., self._places, :][..., :, self._places]
        return inner, covariance[..., self._places, self._aim]

    def _finished(self, coefficients: Array, covariance: Array, means: Array) -> Array:
        """Return coefficients, intercept and the share of variance explained."""
        inner, cross = self._block(covariance)
        intercept = means[..., self._aim] - np.sum(means[..., self._places] * coefficients, -1)
        explained = 2 * np.sum(cross * coefficients, -1) - np.einsum(
            "...i,...ij,...j->...", coefficients, inner, coefficients
        )
        share = explained / covariance[..., self._aim, self._aim]
        return np.concatenate([coefficients, intercept[..., None], share[..., None]], axis=-1)

    def account(self) -> Account:
        """Return what was found, for a terminal, a program and a page."""
        check_is_fitted(self)
        target = self.moment_.names[self._aim]
        names = [str(each) for each in self.feature_names_in_]
        low, high = self.low_.tolist(), self.high_.tolist()
        sure = [not (a <= 0 <= b) for a, b in zip(low, high, strict=True)]
        if self.clear_:
            verdict = (
                f"{sum(sure)} of {count(len(names), 'coefficient')} are told from 0; intervals are of "
                f"{percent(self.level)} and hold the privacy noise"
                + (" and that of sampling normal rows." if self.sampling else " alone.")
            )
        else:
            verdict = (
                "The predictors vary too little beside the noise in some direction, so that no interval "
                "can be stood for: take a larger alpha, fewer predictors or components, or a larger "
                "epsilon."
            )
        rows = zip(
            names,
            self.coef_.tolist(),
            *([each if np.isfinite(each) else None for each in column.tolist()]
              for column in (self.standard_error_, self.low_, self.high_)),
            strict=True,
        )  # fmt: skip
        return Account(
            kind="regression",
            title=f"{target} by {count(len(names), 'column')}, {self._told()}",
            sentences=(
                f"About {percent(self.r2_)} of the variance of {target} is explained; the intercept is "
                f"{number(self.intercept_)}.",
                verdict,
                *self._remark,
                *(clipping_remark(self.moment_) if self.clear_ else ()),
            ),
            tables=(
                Table(
                    title="Coefficients",
                    headings=("Column", "Coefficient", "Standard error", "From", "To"),
                    rows=tuple(rows),
                    file="coefficients.csv",
                ),
            ),
            pictures=((intervals("Coefficients with their intervals", names, self.coef_.tolist(),
                                 low, high), "A line is an interval; a cross has 0 within it."),)
            if self.clear_ else (),
            facts={
                "target": target,
                "predictors": names,
                "coef": plain(self.coef_),
                "intercept": self.intercept_,
                "standard_error": plain(self.standard_error_),
                "low": plain(self.low_),
                "high": plain(self.high_),
                "r2": self.r2_,
                "level": self.level,
                "clear": bool(self.clear_),
                "n_floored": self.n_floored_,
                "clipping_share": self.clipping_share_,
                "excludes_clipping_bias": self.clipping_share_ is not None,
            },
        )  # fmt: skip


class RidgeRegression(_Regression):
    """A column regressed on others, least squares or ridge, from a released moment.

    Parameters
    ----------
    target : str or int
        The column to explain.
    predictors : list of str or int, default=None
        Those to explain it by; None takes all others.
    alpha : float, default=0.0
        The penalty, as in :class:`sklearn.linear_model.Ridge`: of the sum over all rows.
    level : float, default=0.95
        Of the intervals.
    sampling : bool, default=True
        Whether the rows are a sample: else intervals are about the rows themselves.

    Attributes
    ----------
    coef_, intercept_ : ndarray, float
        As in scikit-learn, in the rows' own units.
    standard_error_, low_, high_ : ndarray
        Of the coefficients: noise and sampling together; NaN where ``clear_`` is False.
    clear_ : bool
        Whether the predictors' smallest eigenvalue, with the penalty, is at least twice the edge of the
        noise: only then is the error of the inverse small enough for intervals.
    r2_ : float
        The share of the target's variance that is explained.
    clipping_share_ : float or None
        The share of the rows' squared length that the bound removed; None where no row is clipped or
        nothing is known. Clipping biases coefficients, and intervals exclude that bias.
    """

    def __init__(
        self,
        target: str | int,
        *,
        predictors: Sequence[str | int] | None = None,
        alpha: float = 0.0,
        level: float = 0.95,
        sampling: bool = True,
    ) -> None:
        self.target = target
        self.predictors = predictors
        self.alpha = alpha
        self.level = level
        self.sampling = sampling

    def _penalty(self, moment: Moment) -> float:
        if not (isinstance(self.alpha, int | float) and self.alpha >= 0):
            raise InputError(f"alpha must be 0 or more, got {self.alpha!r}; 0 is least squares")
        return float(self.alpha) * moment.divisor / moment.n_samples

    def _statistic(self, moment: Moment) -> Statistic:
        penalty = self._penalty(moment)

        def statistic(covariance: Array, means: Array) -> Array:
            inner, cross = self._block(covariance)
            inner = inner + penalty * np.eye(inner.shape[-1])
            found = np.asarray(np.linalg.solve(inner, cross[..., None])[..., 0], np.float64)
            return self._finished(found, covariance, means)

        return statistic

    def _least(self, moment: Moment) -> tuple[float, float]:
        """Return the smallest eigenvalue in units of the treated rows, and the edge of its noise."""
        inner = moment.pooled.moment[np.ix_(self._places, self._places)]
        units = moment.units[self._places]
        penalty = np.diag(self._penalty(moment) / (units**2 * moment.divisor))
        edge = moment.noise_std * np.sqrt(2.0 * len(self._places))
        return float(np.linalg.eigvalsh(inner + penalty)[0]), float(edge)

    def _told(self) -> str:
        return "least squares" if self.alpha == 0 else f"ridge with alpha {number(self.alpha)}"


class ComponentRegression(_Regression):
    """A column regressed on the principal components of others, from a released moment.

    Parameters
    ----------
    target, predictors, level, sampling
        As of `RidgeRegression`.
    n_components : int, default=1
        k, the components of the predictors' covariance that are kept.

    Attributes
    ----------
    coef_, intercept_, standard_error_, low_, high_, r2_, clipping_share_
        As of `RidgeRegression`, in terms of the predictors.
    clear_ : bool
        Whether the last component kept stands out from the next by twice the edge of the noise.
    """

    def __init__(
        self,
        target: str | int,
        *,
        n_components: int = 1,
        predictors: Sequence[str | int] | None = None,
        level: float = 0.95,
        sampling: bool = True,
    ) -> None:
        self.target = target
        self.n_components = n_components
        self.predictors = predictors
        self.level = level
        self.sampling = sampling

    def _statistic(self, moment: Moment) -> Statistic:
        del moment
        k, most = self.n_components, len(self._places)
        if not (isinstance(k, int) and 1 <= k <= most):
            raise InputError(
                f"n_components must be a whole number from 1 to the {most} predictors, got {k!r}; choose one"
            )

        def statistic(covariance: Array, means: Array) -> Array:
            inner, cross = self._block(covariance)
            values, vectors = np.linalg.eigh(inner)
            kept, axes = values[..., -k:], vectors[..., :, -k:]
            scores = np.einsum("...dk,...d->...k", axes, cross) / kept
            found = np.einsum("...dk,...k->...d", axes, scores)
            return self._finished(found, covariance, means)

        return statistic

    def _least(self, moment: Moment) -> tuple[float, float]:
        """Return the gap after the last component kept and the edge of its noise, in the rows' units."""
        inner, _ = self._block(moment.covariance)
        values = np.linalg.eigvalsh(inner)[::-1]
        following = values[self.n_components] if self.n_components < len(values) else 0.0
        units = moment.units[self._places]
        edge = moment.noise_std * np.sqrt(2.0 * len(values)) * float(units.max()) ** 2
        return float(values[self.n_components - 1] - following), float(edge * moment.divisor)

    def _told(self) -> str:
        return f"through {count(self.n_components, 'component')}"
