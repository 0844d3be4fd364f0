"""``Correlations``: the correlation matrix of a released moment, and which of it is more than noise."""

from typing import Any, Self

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from fedpower.analyses.spread import (
    clipping_remark,
    clipping_share,
    noised_correlations,
    quantile,
    require_centred,
    standard_errors,
    usable,
)
from fedpower.report.charts import heat_map
from fedpower.report.moment import Moment
from fedpower.report.page import Account, Table
from fedpower.report.record import plain
from fedpower.report.text import count, percent

Array = NDArray[np.float64]


class Correlations(BaseEstimator):
    """Correlations of all columns, with intervals that the noise is in, and a verdict on each.

    A noised spectrum is shrunk by the known noise, which brings correlations nearer to the exact ones.
    Shrinking also biases them, so that intervals are those of the correlations as released.

    Parameters
    ----------
    level : float, default=0.95
        Of the intervals; 1 − level is also the chance, over all pairs together, that one of no
        correlation is told to have some.
    sampling : bool, default=True
        Whether the rows are a sample of something larger. False: intervals are about the rows themselves,
        and without noise they are points.

    Attributes
    ----------
    correlation_ : ndarray of shape (d, d)
        Correlations with a shrunk spectrum; the exact ones where no noise was added.
    released_ : ndarray of shape (d, d)
        Correlations as released, noise included; what is beyond 1 is 1.
    standard_error_, low_, high_ : ndarray of shape (d, d)
        Of ``released_``. On Fisher's scale the error is alike for small and large correlations, so the
        intervals are made there, and given here as correlations.
    distinct_ : ndarray of bool of shape (d, d)
        Whether a correlation is told from 0, all pairs together (Bonferroni).
    clipping_share_ : float or None
        The share of the rows' squared length that the bound removed, which intervals do not account for.
    moment_ : Moment
        What it was computed from.
    """

    def __init__(self, *, level: float = 0.95, sampling: bool = True) -> None:
        self.level = level
        self.sampling = sampling

    def fit(self, moment: Moment, y: object = None) -> Self:
        """Compute all correlations of a released moment and return itself."""
        del y
        require_centred(moment)
        width, found = quantile(self.level), usable(moment)
        d = moment.n_features
        lower = np.tril_indices(d, -1)
        correlations = noised_correlations(moment)
        values = correlations.released[lower]
        errors = standard_errors(_correlations, moment, found.covariance, sampling=self.sampling)
        scaled = np.arctanh(np.clip(values, -1 + 1e-12, 1 - 1e-12))
        widths = errors / np.maximum(1.0 - values**2, 1e-12)
        pairs = max(len(values), 1)
        strict = float(scipy.stats.norm.isf((1.0 - self.level) / (2.0 * pairs)))
        self.correlation_, self.released_ = correlations.shrunk, correlations.released
        self.standard_error_ = _square(errors, d, lower, 0.0)
        self.low_ = _square(np.tanh(scaled - width * widths), d, lower, 1.0)
        self.high_ = _square(np.tanh(scaled + width * widths), d, lower, 1.0)
        self.distinct_ = _square(np.abs(scaled) > strict * widths, d, lower, True).astype(bool)
        self.moment_ = moment
        self.clipping_share_ = clipping_share(moment)
        return self

    def account(self) -> Account:
        """Return what was found, for a terminal, a program and a page."""
        names = self.moment_.names
        rows = []
        for first, second in zip(*np.tril_indices(len(names), -1), strict=True):
            place = (first, second)
            rows.append(
                (
                    f"{names[second]} · {names[first]}",
                    float(self.correlation_[place]),
                    float(self.standard_error_[place]),
                    float(self.low_[place]),
                    float(self.high_[place]),
                    "yes" if self.distinct_[place] else "no",
                )
            )
        rows.sort(key=lambda row: -abs(row[1]))
        told = sum(row[5] == "yes" for row in rows)
        shrunk = (
            ("Correlations have a shrunk spectrum; intervals are of those released, before it.",)
            if self.moment_.noise_std > 0
            else ()
        )
        return Account(
            kind="correlation",
            title=f"Correlations of {len(names)} columns",
            sentences=(
                f"{told} of {count(len(rows), 'pair')} are told from 0, with a chance of at most "
                f"{percent(1 - self.level)} that one of them is none.",
                f"Intervals are of {percent(self.level)} each and hold the privacy noise"
                + (" and that of sampling normal rows." if self.sampling else " alone."),
                *shrunk,
                *clipping_remark(self.moment_),
            ),
            tables=(
                Table(
                    title="Correlations, the largest first",
                    headings=("Pair", "Correlation", "Standard error", "From", "To", "Told from 0"),
                    rows=tuple(rows),
                    file="correlations.csv",
                ),
            ),
            pictures=(
                (
                    heat_map(self.correlation_.tolist(), names, self.distinct_.tolist()),
                    "The stronger the colour, the larger the correlation; a cross is one that cannot be "
                    "told from 0. The table has the numbers.",
                ),
            ),
            facts={
                "columns": list(names),
                "correlation": plain(self.correlation_),
                "standard_error": plain(self.standard_error_),
                "low": plain(self.low_),
                "high": plain(self.high_),
                "distinct": self.distinct_.tolist(),
                "level": self.level,
                "released": plain(self.released_),
                "clipping_share": self.clipping_share_,
            },
        )


def _correlations(covariance: Array, means: Array | None) -> Array:
    del means
    deviations = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    scaled = covariance / (deviations[..., :, None] * deviations[..., None, :])
    rows, columns = np.tril_indices(covariance.shape[-1], -1)
    return np.asarray(np.clip(scaled[..., rows, columns], -1.0, 1.0))


def _square(values: Any, d: int, lower: Any, diagonal: float) -> Array:
    made = np.full((d, d), diagonal, dtype=np.float64)
    made[lower] = made.T[lower] = values
    return made
