"""``RidgeRegression`` and ``ComponentRegression``: a column explained by others, with intervals."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analyses.base import (
    CLEAR,
    LEVEL,
    SAMPLING,
    Analysis,
    Option,
    Statistic,
    clipping_remark,
    new_rows,
    require_count,
    standard_errors,
    table_of,
)  # fmt: skip
from fedpower.errors import InputError
from fedpower.report.charts import intervals
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, number, percent

Array = NDArray[np.float64]


class _Regression(RegressorMixin, Analysis):
    """What regressions on a released moment share."""

    kind = "regression"
    facts = ("coef", "intercept", "standard_error", "low", "high", "r2", "clear", "n_floored",
             "clipping_share")  # fmt: skip

    target: str | int
    predictors: Sequence[str | int] | None
    coef_: Array
    intercept_: float

    def _fit(self, moment: Moment) -> None:
        covariance = self._usable(moment)
        self._aim = moment.column(self.target)
        given = range(moment.n_features) if self.predictors is None else self.predictors
        self._places = [place for place in (moment.column(name) for name in given) if place != self._aim]
        if not self._places or len(set(self._places)) < len(self._places):
            raise InputError(
                f"predictors must be columns other than the target, each once, got {list(given)!r}; name some"
            )
        statistic = self._statistic(moment)
        values = statistic(covariance, moment.mean)
        least, edge = self._least(moment)
        self.clear_ = bool(moment.noise_std == 0 or least > CLEAR * edge)
        errors = standard_errors(statistic, moment, covariance, sampling=self.sampling)
        if not self.clear_:
            errors = np.full_like(errors, np.nan)
        self.coef_, self.intercept_ = values[:-2], float(values[-2])
        self.r2_ = float(np.clip(values[-1], 0.0, 1.0))
        self.intercept_error_ = float(errors[-2])
        self._set_intervals(self.coef_, errors[:-2])
        self.feature_names_in_ = np.asarray([moment.names[place] for place in self._places], dtype=object)
        self.n_features_in_ = len(self._places)

    def predict(self, X: ArrayLike) -> Array:
        """Return what the target would be of rows of the predictors, in their order; or of a table."""
        check_is_fitted(self)
        given = new_rows(X, self.feature_names_in_, what="predictors for columns", advice="leave others out")
        return np.asarray(given @ self.coef_ + self.intercept_)

    def _statistic(self, moment: Moment) -> Statistic:
        raise NotImplementedError

    def _least(self, moment: Moment) -> tuple[float, float]:
        raise NotImplementedError

    def _method(self) -> str:
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

    def _title(self) -> str:
        target = self.moment_.names[self._aim]
        return f"{target} by {count(len(self.coef_), 'column')}, {self._method()}"

    def _sentences(self) -> Iterator[str]:
        yield (
            f"About {percent(self.r2_)} of the variance of {self.moment_.names[self._aim]} is explained; the "
            f"intercept is {number(self.intercept_)}."
        )
        if self.clear_:
            sure = int(np.sum((self.low_ > 0) | (self.high_ < 0)))
            yield (
                f"{sure} of {count(len(self.coef_), 'coefficient')} are told from 0; intervals are of "
                f"{percent(self.level)} and {self._what_intervals_hold}"
            )
        else:
            yield (
                "The predictors vary too little compared with the noise in some direction, so no interval "
                "can be given: take a larger alpha, fewer predictors or components, or a larger epsilon."
            )
        yield from self._remark
        if self.clear_:
            yield from clipping_remark(self.moment_)

    def _tables(self) -> Iterator[Table]:
        columns = {
            "Column": map(str, self.feature_names_in_),
            "Coefficient": self.coef_,
            "Standard error": self.standard_error_,
            "From": self.low_,
            "To": self.high_,
        }
        yield table_of("Coefficients", "coefficients.csv", columns)

    def _pictures(self) -> Iterator[tuple[Markup, str]]:
        if self.clear_:
            numbers = (values.tolist() for values in (self.coef_, self.low_, self.high_))
            names = [str(name) for name in self.feature_names_in_]
            chart = intervals("Coefficients with their intervals", names, *numbers)
            yield chart, "A line is an interval; a cross has 0 within it."

    def _more_facts(self) -> dict[str, Any]:
        return {
            "target": self.moment_.names[self._aim],
            "predictors": [str(name) for name in self.feature_names_in_],
            "excludes_clipping_bias": self.clipping_share_ is not None,
        }


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

    options = (
        Option("target", "--target", "The column to explain.", type=str, required=True, metavar="COLUMN"),
        Option(
            "predictors",
            "--predictors",
            "Columns to explain it by; all others by default.",
            type=list,
            metavar="A,B,...",
        ),
        Option("alpha", "--alpha", "Ridge penalty of the sum over all rows; 0 by default.", type=float),
        Option("n_components", "-k --components", "Regress on so many principal components instead."),
        LEVEL,
        SAMPLING,
    )

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

    @classmethod
    def from_options(cls, **given: Any) -> Analysis:
        """Return the regression that a command's options ask for: ridge, or on components."""
        alpha, n_components = given.pop("alpha"), given.pop("n_components")
        if alpha is not None and n_components is not None:
            raise InputError(
                "a regression must be either ridge or on components, got --alpha and -k; leave one out"
            )
        if n_components is not None:
            return ComponentRegression(n_components=n_components, **given)
        return cls(alpha=alpha or 0.0, **given)

    def _penalty(self, moment: Moment) -> float:
        if not (isinstance(self.alpha, int | float) and self.alpha >= 0):
            raise InputError(f"alpha must be 0 or more, got {self.alpha!r}; 0 is least squares")
        return float(self.alpha) * moment.divisor / moment.n_samples

    def _statistic(self, moment: Moment) -> Statistic:
        penalty = self._penalty(moment)

        def statistic(covariance: Array, means: Array) -> Array:
            inner, cross = self._block(covariance)
            inner = inner + penalty * np.eye(inner.shape[-1])
            solved = np.asarray(np.linalg.solve(inner, cross[..., None])[..., 0], np.float64)
            return self._finished(solved, covariance, means)

        return statistic

    def _least(self, moment: Moment) -> tuple[float, float]:
        """Return the smallest eigenvalue in units of the treated rows, and the edge of its noise."""
        inner = moment.pooled.moment[np.ix_(self._places, self._places)]
        units = moment.units[self._places]
        penalty = np.diag(self._penalty(moment) / (units**2 * moment.divisor))
        edge = moment.noise_std * np.sqrt(2.0 * len(self._places))
        return float(np.linalg.eigvalsh(inner + penalty)[0]), float(edge)

    def _method(self) -> str:
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
        most = len(self._places)
        k = require_count("n_components", self.n_components, most, upto=f"the {most} predictors")

        def statistic(covariance: Array, means: Array) -> Array:
            inner, cross = self._block(covariance)
            values, vectors = np.linalg.eigh(inner)
            kept, axes = values[..., -k:], vectors[..., :, -k:]
            scores = np.einsum("...dk,...d->...k", axes, cross) / kept
            coefficients = np.einsum("...dk,...k->...d", axes, scores)
            return self._finished(coefficients, covariance, means)

        return statistic

    def _least(self, moment: Moment) -> tuple[float, float]:
        """Return the gap after the last component kept and the edge of its noise, in the rows' units."""
        inner, _ = self._block(moment.covariance)
        values = np.linalg.eigvalsh(inner)[::-1]
        following = values[self.n_components] if self.n_components < len(values) else 0.0
        units = moment.units[self._places]
        edge = moment.noise_std * np.sqrt(2.0 * len(values)) * float(units.max()) ** 2
        return float(values[self.n_components - 1] - following), float(edge * moment.divisor)

    def _method(self) -> str:
        return f"through {count(self.n_components, 'component')}"
