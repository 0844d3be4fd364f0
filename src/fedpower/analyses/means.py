"""``MeanTests``: which column means are not what they should be, after common factors are removed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.stats
from markupsafe import Markup
from numpy.typing import NDArray

from fedpower.analyses.base import LEVEL, Analysis, Option, require_count, table_of, yes_or_no
from fedpower.errors import InputError
from fedpower.report.charts import intervals
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, percent

Array = NDArray[np.float64]


class MeanTests(Analysis):
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

    kind = "means"
    options = (
        Option("n_factors", "-k --factors", "Common factors to take off first.", default=0),
        Option(
            "null",
            "--null",
            "What means should be; 0 by default, repeatable.",
            type=str,
            multiple=True,
            metavar="[COLUMN=]NUMBER",
        ),
        LEVEL,
    )
    facts = ("mean", "null", "standard_error", "low", "high", "p_value", "q_value", "rejected",
             "noise_share", "clipping_share")  # fmt: skip

    def __init__(
        self, n_factors: int = 0, *, null: Any = 0.0, level: float = 0.95, null_share: float = 0.9
    ) -> None:
        self.n_factors = n_factors
        self.null = null
        self.level = level
        self.null_share = null_share

    @classmethod
    def from_options(cls, **given: Any) -> Analysis:
        """Return the tests that a command's options ask for."""
        return cls(null=_nulls(given.pop("null")), **given)

    def _fit(self, moment: Moment) -> None:
        covariance = self._usable(moment)
        d, n, k = moment.n_features, moment.n_samples, self.n_factors
        null = self._nulls(moment)
        if not (isinstance(self.null_share, int | float) and 0 < self.null_share <= 1):
            raise InputError(
                f"null_share must be above 0 and at most 1, got {self.null_share!r}; 0.9 is usual"
            )
        nearest = max(int(np.ceil(self.null_share * d)), 1)
        require_count(
            "n_factors",
            k,
            nearest - 1,
            upto=f"{nearest - 1}, below the {nearest} columns that factors are fitted to",
            least=0,
        )
        noise = (moment.mean_noise_std * moment.units) ** 2
        variances = np.diagonal(covariance)
        away = moment.mean - null
        hat = np.zeros((d, d))
        own = covariance.copy()
        if k:
            values, vectors = np.linalg.eigh(covariance)
            loadings = vectors[:, -k:] * np.sqrt(np.maximum(values[-k:], 0.0))
            chosen = np.argsort(np.abs(away) / np.sqrt(variances / n + noise), kind="stable")
            chosen = np.sort(chosen[:nearest])
            hat[:, chosen] = loadings @ np.linalg.pinv(loadings[chosen])
            own = np.diag(np.maximum(np.diagonal(own - loadings @ loadings.T), 0.0))
        apart = np.eye(d) - hat
        sampled = np.einsum("ij,jk,ik->i", apart, own / n, apart)
        noised = np.einsum("ij,j,ij->i", apart, noise, apart)
        self.noise_share_ = np.asarray(noised / np.maximum(sampled + noised, np.finfo(float).tiny))
        left = apart @ away
        self.null_ = null
        self.mean_ = np.asarray(null + left)
        errors = np.sqrt(np.maximum(sampled + noised, np.finfo(float).tiny))
        self._set_intervals(self.mean_, errors)
        self.statistic_ = np.asarray(left / self.standard_error_)
        self.p_value_ = np.asarray(2.0 * scipy.stats.norm.sf(np.abs(self.statistic_)))
        self.q_value_ = np.asarray(scipy.stats.false_discovery_control(self.p_value_))
        self.rejected_ = self.q_value_ <= 1.0 - self.level

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

    def _title(self) -> str:
        factors = f", {count(self.n_factors, 'factor')} taken off" if self.n_factors else ""
        return f"Tests of {count(len(self.mean_), 'mean')}{factors}"

    def _sentences(self) -> Iterator[str]:
        yield (
            f"{int(self.rejected_.sum())} of {count(len(self.mean_), 'mean')} are not what they should be; "
            f"of those told so at most {percent(1 - self.level)} are expected to be false."
        )
        noise = float(np.median(self.noise_share_))
        yield f"Privacy noise makes up {percent(noise)} of the squared error of the median column."
        yield from self._remarks

    def _tables(self) -> Iterator[Table]:
        yield table_of(
            "Means",
            "means.csv",
            {
                "Column": self.moment_.names,
                "Mean": self.mean_,
                "Should be": self.null_,
                "Standard error": self.standard_error_,
                "From": self.low_,
                "To": self.high_,
                "p": self.p_value_,
                "q": self.q_value_,
                "Differs": yes_or_no(self.rejected_),
            },
        )

    def _pictures(self) -> Iterator[tuple[Markup, str]]:
        differences = ((ends - self.null_).tolist() for ends in (self.mean_, self.low_, self.high_))
        chart = intervals("How far means are from what they should be", self.moment_.names, *differences)
        yield chart, "A line is an interval of the difference; a cross has 0 within it."

    def _more_facts(self) -> dict[str, Any]:
        return {"columns": list(self.moment_.names)}


def _nulls(words: tuple[str, ...]) -> float | dict[str, float]:
    """Return what the options say that means should be: a number, or numbers by column."""
    named: dict[str, float] = {}
    for word in words:
        column, _, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (not column and len(words) > 1):
            raise InputError(
                f"--null must be one number for all columns, or COLUMN=NUMBER for some, got {word!r}; "
                "write e.g. --null age=40"
            )
        if not column:
            return value
        named[column] = value
    return named or 0.0
