"""``MeanTests``: which column means are not what they should be, with common factors taken off first."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from fedpower.analyses.spread import clipping_remark, clipping_share, quantile, require_centred, usable
from fedpower.errors import InputError
from fedpower.report.charts import intervals
from fedpower.report.moment import Moment
from fedpower.report.page import Account, Table
from fedpower.report.record import plain
from fedpower.report.text import count, percent

Array = NDArray[np.float64]


class MeanTests(BaseEstimator):
    """Tests of all column means at once, less dependent after common factors are taken off [FKSZ19].

    x̄ = μ + Bf̄ + ū + e, with B the loadings of k principal components, f̄ the factors' mean over the rows
    and e the privacy noise. f̄ is fitted by least squares to the columns whose means are nearest to what
    they should be; what is left is tested, two-sided, and false discoveries are controlled [BH95].

    Parameters
    ----------
    n_factors : int, default=0
        k; 0 tests the means as they are.
    null : float, mapping from names, or list, default=0.0
        What the means should be.
    level : float, default=0.95
        Of the intervals; 1 − level is the false discovery rate.
    null_share : float, default=0.9
        The share of columns, nearest to their null, that f̄ is fitted to.

    Attributes
    ----------
    mean_, standard_error_, low_, high_ : ndarray of shape (d,)
        Means less the factors' part, with errors and intervals: sampling and privacy noise.
    statistic_, p_value_, q_value_ : ndarray of shape (d,)
        z, its two-sided p-value, and that adjusted for the number of columns.
    rejected_ : ndarray of bool of shape (d,)
        Whether a mean is not what it should be, at a false discovery rate of 1 − level.
    noise_share_ : ndarray of shape (d,)
        The share of each squared error that is privacy noise.
    moment_ : Moment
        What it was computed from.
    """

    def __init__(
        self, n_factors: int = 0, *, null: Any = 0.0, level: float = 0.95, null_share: float = 0.9
    ) -> None:
        self.n_factors = n_factors
        self.null = null
        self.level = level
        self.null_share = null_share

    def fit(self, moment: Moment, y: object = None) -> Self:
        """Test the means of a released moment and return itself."""
        del y
        require_centred(moment)
        width, found = quantile(self.level), usable(moment)
        d, n, k = moment.n_features, moment.n_samples, self.n_factors
        null = self._nulls(moment)
        if not (isinstance(self.null_share, int | float) and 0 < self.null_share <= 1):
            raise InputError(
                f"null_share must lie above 0 and be at most 1, got {self.null_share!r}; 0.9 is usual"
            )
        nearest = max(int(np.ceil(self.null_share * d)), 1)
        if not (isinstance(k, int) and 0 <= k < nearest):
            raise InputError(
                f"n_factors must be a whole number below the {nearest} columns that factors are fitted "
                f"to, got {k!r}; choose fewer"
            )
        noise = (moment.mean_noise_std * moment.units) ** 2
        variances = np.diagonal(found.covariance)
        away = moment.mean - null
        hat = np.zeros((d, d))
        own = found.covariance.copy()
        if k:
            values, vectors = np.linalg.eigh(found.covariance)
            loadings = vectors[:, -k:] * np.sqrt(np.maximum(values[-k:], 0.0))
            chosen = np.argsort(np.abs(away) / np.sqrt(variances / n + noise), kind="stable")
            chosen = np.sort(chosen[:nearest])
            hat[:, chosen] = loadings @ np.linalg.pinv(loadings[chosen])
            own = np.diag(np.maximum(np.diagonal(own - loadings @ loadings.T), 0.0))
        apart = np.eye(d) - hat
        sampled = np.einsum("ij,jk,ik->i", apart, own / n, apart)
        noised = np.einsum("ij,j,ij->i", apart, noise, apart)
        self.standard_error_ = np.sqrt(np.maximum(sampled + noised, np.finfo(float).tiny))
        self.noise_share_ = np.asarray(noised / np.maximum(sampled + noised, np.finfo(float).tiny))
        left = apart @ away
        self.null_ = null
        self.mean_ = np.asarray(null + left)
        self.low_ = self.mean_ - width * self.standard_error_
        self.high_ = self.mean_ + width * self.standard_error_
        self.statistic_ = np.asarray(left / self.standard_error_)
        self.p_value_ = np.asarray(2.0 * scipy.stats.norm.sf(np.abs(self.statistic_)))
        self.q_value_ = np.asarray(scipy.stats.false_discovery_control(self.p_value_))
        self.rejected_ = self.q_value_ <= 1.0 - self.level
        self.n_floored_, self._remark, self.moment_ = found.n_floored, found.remark, moment
        return self

    def _nulls(self, moment: Moment) -> Array:
        if isinstance(self.null, Mapping):
            values = np.zeros(moment.n_features)
            for name, value in self.null.items():
                values[moment.column(name)] = float(value)
            return values
        try:
            return np.array(np.broadcast_to(np.asarray(self.null, float), (moment.n_features,)))
        except (TypeError, ValueError):
            raise InputError(
                f"null must be a number, one for each of the {moment.n_features} columns, or a mapping "
                f"from names, got {self.null!r}; give one of these"
            ) from None

    def account(self) -> Account:
        """Return what was found, for a terminal, a program and a page."""
        names = self.moment_.names
        columns = (self.mean_, self.null_, self.standard_error_, self.low_, self.high_,
                   self.p_value_, self.q_value_)  # fmt: skip
        verdicts = ["yes" if each else "no" for each in self.rejected_]
        rows = tuple(zip(names, *(each.tolist() for each in columns), verdicts, strict=True))
        noise = float(np.median(self.noise_share_))
        return Account(
            kind="means",
            title=f"Tests of {count(len(names), 'mean')}"
            + (f", {count(self.n_factors, 'factor')} taken off" if self.n_factors else ""),
            sentences=(
                f"{int(self.rejected_.sum())} of {count(len(names), 'mean')} are not what they should "
                f"be; of those told so at most {percent(1 - self.level)} are expected to be false.",
                f"Privacy noise makes up {percent(noise)} of the squared error of the median column.",
                *self._remark,
                *clipping_remark(self.moment_),
            ),
            tables=(
                Table(
                    title="Means",
                    headings=("Column", "Mean", "Should be", "Standard error", "From", "To", "p", "q",
                              "Differs"),
                    rows=rows,
                    file="means.csv",
                ),
            ),
            pictures=(
                (
                    intervals(
                        "How far means are from what they should be",
                        names,
                        (self.mean_ - self.null_).tolist(),
                        (self.low_ - self.null_).tolist(),
                        (self.high_ - self.null_).tolist(),
                    ),
                    "A line is an interval of the difference; a cross has 0 within it.",
                ),
            ),
            facts={
                "columns": list(names),
                "mean": plain(self.mean_),
                "null": plain(self.null_),
                "standard_error": plain(self.standard_error_),
                "low": plain(self.low_),
                "high": plain(self.high_),
                "p_value": plain(self.p_value_),
                "q_value": plain(self.q_value_),
                "rejected": self.rejected_.tolist(),
                "noise_share": plain(self.noise_share_),
                "level": self.level,
                "clipping_share": clipping_share(self.moment_),
            },
        )  # fmt: skip
