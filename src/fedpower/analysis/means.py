"""``MeanTests``: which column means differ from expected values, after common factors are removed."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

import numpy as np
import scipy.stats

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array
from fedpower.options import setting
from fedpower.report.covariance import Covariance
from fedpower.report.page import Table
from fedpower.report.text import count, percent


def _nulls(words: tuple[str, ...]) -> float | dict[str, float]:
    """Return the means that --null expects: a number, or numbers by column."""
    named: dict[str, float] = {}
    for word in words:
        column, _, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (not column and len(words) > 1):
            raise InputError(f"--null must be one number for all columns or COLUMN=NUMBER, got {word!r}")
        if not column:
            return value
        named[column] = value
    return named or 0.0


class MeanTests(Analysis):
    """Test the means of all columns at once, after common factors are removed [FKSZ19].

    Removing k principal components makes the tests less dependent. The false discovery rate is controlled
    [BH95], and tests are two-sided.

    Attributes
    ----------
    mean_, standard_error_, low_, high_ : ndarray of shape (d,)
        Means without the factors' part, with standard errors and intervals from sampling and privacy noise.
    statistic_, p_value_, q_value_ : ndarray of shape (d,)
        z, its p-value, and the p-value adjusted for the number of columns.
    rejected_ : ndarray of bool of shape (d,)
        Whether a mean differs from ``null``, at a false discovery rate of 1 − level.
    noise_share_ : ndarray of shape (d,)
        Share of each squared standard error that comes from privacy noise.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import MeanTests
    >>> rows = np.random.default_rng(1).normal(size=(500, 3)) + [0, 0, 1]
    >>> MeanTests().fit(FedCovariance(epsilon=float("inf")).fit(rows)).rejected_.tolist()
    [False, False, True]
    """

    kind = "means"

    n_factors: int = setting(0, "Common factors to remove first, k.", "size", option="-k --factors")
    _: KW_ONLY
    null: Any = setting(
        0.0,
        "Expected means: a number for all columns, or by column; 0 by default.",
        parse=_nulls,
        multiple=True,
        metavar="[COLUMN=]NUMBER",
    )
    level: float = base.level(help="Level of the intervals; 1 − level is the false discovery rate.")
    null_share: float = setting(
        0.9, "Share of columns, nearest to null, that determine the factors' mean.", "part", option=None
    )

    def _fit(self, release: Covariance) -> None:
        covariance, self.n_floored_ = base.usable(release)
        d, n, k = release.n_features, release.n_samples, self.n_factors
        null, nearest = self._null_of(release), max(int(np.ceil(self.null_share * d)), 1)
        must = f"at most {nearest - 1}, below the {nearest} columns that determine factors"
        require(k < nearest, "n_factors", must, k)
        noise = (release.mean_noise_std * release.units) ** 2
        away = release.mean - null
        hat, own = np.zeros((d, d)), covariance
        if k:
            values, vectors = np.linalg.eigh(covariance)
            loadings = vectors[:, -k:] * np.sqrt(np.maximum(values[-k:], 0.0))
            errors = np.sqrt(np.diagonal(covariance) / n + noise)
            chosen = np.sort(np.argsort(np.abs(away) / errors, kind="stable")[:nearest])
            hat[:, chosen] = loadings @ np.linalg.pinv(loadings[chosen])
            own = np.diag(np.maximum(np.diagonal(covariance - loadings @ loadings.T), 0.0))
        remaining = np.eye(d) - hat
        sampled = np.einsum("ij,jk,ik->i", remaining, own / n, remaining)
        noised = np.einsum("ij,j,ij->i", remaining, noise, remaining)
        squares = np.maximum(sampled + noised, np.finfo(float).tiny)
        left = remaining @ away
        self.null_, self.mean_ = null, np.asarray(null + left)
        self.noise_share_ = np.asarray(noised / squares)
        self._set_intervals(self.mean_, np.sqrt(squares))
        self.statistic_ = np.asarray(left / self.standard_error_)
        self.p_value_ = np.asarray(2.0 * scipy.stats.norm.sf(np.abs(self.statistic_)))
        self.q_value_ = np.asarray(scipy.stats.false_discovery_control(self.p_value_))
        self.rejected_ = self.q_value_ <= 1.0 - self.level

    def _null_of(self, release: Covariance) -> Array:
        if isinstance(self.null, Mapping):
            values = np.zeros(release.n_features)
            for name, value in self.null.items():
                values[release.column(name)] = float(value)
            return values
        try:
            return np.array(np.broadcast_to(np.asarray(self.null, float), (release.n_features,)))
        except (TypeError, ValueError):
            must = f"a number, {release.n_features} numbers or a mapping from names"
            raise InputError(f"null must be {must}, got {self.null!r}") from None

    def _page(self) -> Contents:
        means = count(len(self.mean_), "mean")
        factors = f", {count(self.n_factors, 'factor')} removed" if self.n_factors else ""
        yield f"Tests of {means}{factors}"
        yield (
            f"{int(self.rejected_.sum())} of {means} differ from their expected values; "
            f"on average, at most {percent(1 - self.level)} of these findings are false."
        )
        if not self.null_.any():
            yield "Means are tested against 0, which suits changes; for others, give `null`."
        noise = float(np.median(self.noise_share_))
        yield f"Privacy noise makes up {percent(noise)} of the squared error of the median column."
        columns = {
            "Column": self.columns_,
            "Mean": self.mean_,
            "Expected": self.null_,
            **self._interval_columns(),
            "p": self.p_value_,
            "q": self.q_value_,
            "Differs": self.rejected_,
        }
        yield Table("Means", "means.csv", columns)
        differences = (ends - self.null_ for ends in (self.mean_, self.low_, self.high_))
        caption = "Lines are intervals of the difference; a cross marks one that contains 0."
        title = "Differences of means from their expected values"
        yield base.interval_chart(title, self.columns_, *differences, caption=caption)
