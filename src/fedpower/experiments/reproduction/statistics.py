"""What claims are tested with: a number a repetition, its mean with confidence, and a bound."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from fedpower.experiments.reproduction.table import Table

Array = NDArray[np.float64]
Query = Mapping[str, Any]

LEVEL = 0.01
"""A part of a claim holds where the opposite is rejected at this level."""

CHANCE = 0.95
"""Errors above this are what a random basis has: nothing was learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A number a repetition.

    Attributes
    ----------
    values
        The numbers; logarithms of ratios where ``ratios``.
    ratios
        Whether the geometric mean is meant.
    least_error
        The smallest mean error among the curves compared; NaN where no errors are.
    """

    values: Array
    ratios: bool = False
    least_error: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a mean must keep to: at most, at least, or between."""

    at_least: float = -math.inf
    at_most: float = math.inf

    def __str__(self) -> str:
        if math.isinf(self.at_least):
            return f"at most {self.at_most:g}"
        if math.isinf(self.at_most):
            return f"at least {self.at_least:g}"
        return f"{self.at_least:g} to {self.at_most:g}"


LESS = Bound(at_most=0.95)
MORE = Bound(at_least=1.05)
"""Differences of less than 5% in error are no difference that a figure could show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over repetitions.

    Attributes
    ----------
    value, low, high
        The mean and its two-sided confidence interval at level 1 − 2·`LEVEL`.
    p_value
        Of the hypothesis that the mean does not keep to the bound (one-sided t test; the larger of
        two where the bound has two sides).
    holds
        Whether that is below `LEVEL`.
    n
        Repetitions.
    """

    value: float
    low: float
    high: float
    p_value: float
    holds: bool
    n: int


def estimate(sample: Sample, bound: Bound) -> Estimate:
    """Return the mean of a sample and whether it keeps to the bound.

    Values that are all alike, or of which one is infinite (something was never reached), need no test:
    their mean keeps to the bound or it does not.
    """
    values = sample.values
    back: Callable[[float], float] = math.exp if sample.ratios else float
    limits = [bound.at_least, bound.at_most]
    if sample.ratios:
        limits = [math.log(limit) if 0 < limit < math.inf else limit for limit in limits]
    low, high = limits
    mean, count = float(values.mean()), values.size
    finite = math.isfinite(mean)
    error = float(values.std(ddof=1)) / math.sqrt(count) if finite else 0.0
    if error <= 1e-12 * max(1.0, abs(mean)):
        p_value = 0.0 if low <= mean <= high else 1.0
        return Estimate(
            value=back(mean),
            low=back(mean),
            high=back(mean),
            p_value=p_value,
            holds=p_value < LEVEL,
            n=count,
        )
    law = scipy.stats.t(df=count - 1)
    reach = float(law.ppf(1 - LEVEL)) * error
    p_value = max(float(law.sf((mean - low) / error)), float(law.sf((high - mean) / error)))
    return Estimate(
        value=back(mean),
        low=back(mean - reach),
        high=back(mean + reach),
        p_value=p_value,
        holds=p_value < LEVEL,
        n=count,
    )


def ratio(
    table: Table,
    above: Query,
    below: Query,
    *,
    column: str = "error",
    rounds: Literal["last", "common", "first"] = "last",
) -> Sample:
    """Return log(above/below) by repetition: after the last rounds, the first, or all in common."""
    first, second = table.values(column, **above), table.values(column, **below)
    least = min(float(each[:, -1].mean()) for each in (first, second))
    if rounds == "last":
        logs = np.log(first[:, -1] / second[:, -1])
    else:
        count = 1 if rounds == "first" else min(first.shape[1], second.shape[1])
        logs = np.log(first[:, :count] / second[:, :count]).mean(axis=1)
    return Sample(values=logs, ratios=True, least_error=least if column == "error" else math.nan)


def slope(table: Table, queries: Mapping[float, Query]) -> Sample:
    """Return the slope of log(last error) on log(x), by repetition."""
    places = np.log(np.array(list(queries)))
    errors = np.array([table.last(**query) for query in queries.values()])
    centred = places - places.mean()
    return Sample(
        values=centred @ np.log(errors) / (centred @ centred),
        least_error=float(errors.mean(axis=1).min()),
    )


def rounds_to(table: Table, query: Query, error: float) -> Array:
    """Return the rounds until the error is reached, by repetition; infinite where it is not."""
    reached = table.values(**query) <= error
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, math.inf)


def rows_to(table: Table, query: Query, error: float) -> Array:
    """Return n at which the last error falls to ``error``, by repetition, log n interpolated.

    Infinite where no n that was run gets there.
    """
    sizes = sorted({row.n_rows for row in table.select(**query)})
    errors = np.array([table.last(**query, n_rows=size) for size in sizes])
    found = np.full(errors.shape[1], math.inf)
    for place, column in enumerate(errors.T):
        after = int(np.argmax(column <= error))
        if column[after] > error:
            continue
        if after == 0:
            found[place] = sizes[0]
            continue
        heights = np.log(column[[after, after - 1]])
        where = np.log([sizes[after], sizes[after - 1]])
        found[place] = math.exp(float(np.interp(math.log(error), heights, where)))
    return found
