"""``Correlations``: all correlations of a released moment with intervals, and which differ from 0."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.stats
from markupsafe import Markup
from numpy.typing import NDArray

from fedpower.analyses.base import (
    LEVEL,
    SAMPLING,
    Analysis,
    noised_correlations,
    quantile,
    standard_errors,
    table_of,
    yes_or_no,
)  # fmt: skip
from fedpower.report.charts import heat_map
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, percent

Array = NDArray[np.float64]


class Correlations(Analysis):
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

    kind = "correlation"
    options = (LEVEL, SAMPLING)
    facts = ("correlation", "standard_error", "low", "high", "distinct", "released", "clipping_share")

    def __init__(self, *, level: float = 0.95, sampling: bool = True) -> None:
        self.level = level
        self.sampling = sampling

    def _fit(self, moment: Moment) -> None:
        width, covariance = quantile(self.level), self._usable(moment)
        d = moment.n_features
        lower = np.tril_indices(d, -1)
        correlations = noised_correlations(moment)
        values = correlations.released[lower]
        errors = standard_errors(_correlations, moment, covariance, sampling=self.sampling)
        scaled = np.arctanh(np.clip(values, -1 + 1e-12, 1 - 1e-12))
        widths = errors / np.maximum(1.0 - values**2, 1e-12)
        pairs = max(len(values), 1)
        strict = float(scipy.stats.norm.isf((1.0 - self.level) / (2.0 * pairs)))
        self.correlation_, self.released_ = correlations.shrunk, correlations.released
        self.standard_error_ = _square(errors, d, lower, 0.0)
        self.low_ = _square(np.tanh(scaled - width * widths), d, lower, 1.0)
        self.high_ = _square(np.tanh(scaled + width * widths), d, lower, 1.0)
        self.distinct_ = _square(np.abs(scaled) > strict * widths, d, lower, True).astype(bool)

    def _title(self) -> str:
        return f"Correlations of {len(self.moment_.names)} columns"

    def _sentences(self) -> Iterator[str]:
        distinct = self.distinct_[np.tril_indices(len(self.distinct_), -1)]
        yield (
            f"{int(distinct.sum())} of {count(len(distinct), 'pair')} are told from 0, with a chance of at "
            f"most {percent(1 - self.level)} that one of them is none."
        )
        yield self._interval_sentence()
        if self.moment_.noise_std > 0:
            yield "Correlations have a shrunk spectrum; intervals are of those released, before it."
        yield from self._remarks[len(self._remark) :]

    def _tables(self) -> Iterator[Table]:
        names, lower = self.moment_.names, np.tril_indices(len(self.correlation_), -1)
        order = np.argsort(-np.abs(self.correlation_[lower]), kind="stable")
        firsts, seconds = (places[order] for places in lower)
        at = (firsts, seconds)
        yield table_of(
            "Correlations, the largest first",
            "correlations.csv",
            {
                "Pair": [f"{names[b]} · {names[a]}" for a, b in zip(firsts, seconds, strict=True)],
                "Correlation": self.correlation_[at],
                "Standard error": self.standard_error_[at],
                "From": self.low_[at],
                "To": self.high_[at],
                "Told from 0": yes_or_no(self.distinct_[at]),
            },
        )

    def _pictures(self) -> Iterator[tuple[Markup, str]]:
        yield (
            heat_map(self.correlation_.tolist(), self.moment_.names, self.distinct_.tolist()),
            "The stronger the colour, the larger the correlation; a cross is one that cannot be told from 0. "
            "The table has the numbers.",
        )

    def _more_facts(self) -> dict[str, Any]:
        return {"columns": list(self.moment_.names)}


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
