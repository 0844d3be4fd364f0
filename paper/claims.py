"""Claims, the paper's and ours: functions of the runs, each tested against a bound with confidence."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from paper.table import Table, rounded

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
            value=back(mean), low=back(mean), high=back(mean), p_value=p_value, holds=p_value < LEVEL, n=count
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
        values=centred @ np.log(errors) / (centred @ centred), least_error=float(errors.mean(axis=1).min())
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


DROWNED = "the noise drowns the signal there and all errors are near 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One comparison that a claim comes down to.

    Attributes
    ----------
    what
        Names the number, e.g. "error of p=4 over that of p=1".
    sample
        Gives the number of each repetition.
    bound
        What its mean must keep to.
    """

    what: str
    sample: Callable[[Table], Sample]
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence that can be tested.

    Attributes
    ----------
    name
        Short, unique.
    whose
        The paper's, or ours.
    sentence, locus
        What is claimed, quoted from the paper where it is the paper's, and where it stands.
    figure, panel
        Where the runs behind it are shown.
    how
        How it is tested, in a sentence.
    parts
        All must hold.
    also
        The same parts in other noise modes, by mode: reported, but not part of the verdict.
    """

    name: str
    whose: Literal["paper", "fedpower"]
    sentence: str
    locus: str
    figure: str
    panel: str
    how: str
    parts: Sequence[Part]
    also: Mapping[str, Sequence[Part]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A part, its estimate, and whether noise had drowned everything it compares."""

    part: Part
    found: Estimate
    drowned: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; what is not finite is None."""
        found = self.found
        return {
            "statistic": self.part.what,
            "value": _number(found.value),
            "low": _number(found.low),
            "high": _number(found.high),
            "p_value": _number(found.p_value),
            "n": found.n,
            "threshold": str(self.part.bound),
            "holds": found.holds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the runs say about a claim."""

    claim: Claim
    parts: tuple[Judged, ...]
    also: dict[str, tuple[Judged, ...]]

    @property
    def holds(self) -> bool:
        """Whether every part holds."""
        return all(each.found.holds for each in self.parts)

    @property
    def weakest(self) -> Judged:
        """The part that decides: the one with the largest p-value."""
        return max(self.parts, key=lambda each: each.found.p_value)

    @property
    def explanation(self) -> str:
        """One plain sentence."""
        found, part = self.weakest.found, self.weakest.part
        spread = f" ({found.low:.3g} to {found.high:.3g})" if found.low < found.high else ""
        reported = f"the {part.what} is {found.value:.3g}{spread} where {part.bound} was asked"
        others = len(self.parts) - 1
        if self.holds:
            kept = f", and {'the other part holds' if others == 1 else f'the other {others} hold'} too"
            hollow = f", though only because {DROWNED}" if self.weakest.drowned else ""
            return f"It holds: {reported}{kept if others else ''}{hollow}."
        bound = part.bound
        if self.weakest.drowned:
            return f"It does not hold: {reported}, because {DROWNED}."
        if bound.at_least <= found.value <= bound.at_most:
            return f"It is not shown: {reported}, but {found.n} repetitions spread too widely."
        return f"It does not hold: {reported}."

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        claim, weakest = self.claim, self.weakest.as_dict()
        return {
            "id": claim.name,
            "whose": claim.whose,
            "sentence": claim.sentence,
            "locus": claim.locus,
            "figure": claim.figure,
            "panel": claim.panel,
            "how": claim.how,
            "test": {key: weakest[key] for key in ("statistic", "value", "low", "high", "p_value")},
            "threshold": weakest["threshold"],
            "holds": self.holds,
            "explanation": self.explanation,
            "parts": [each.as_dict() for each in self.parts],
            "also": {
                mode: {
                    "holds": all(each.found.holds for each in parts),
                    "parts": [each.as_dict() for each in parts],
                }
                for mode, parts in self.also.items()
            },
        }


def judge(claim: Claim, table: Table) -> Verdict:
    """Return what the runs say about a claim."""
    return Verdict(
        claim=claim,
        parts=_judged(claim.parts, table),
        also={mode: _judged(parts, table) for mode, parts in claim.also.items()},
    )


def judge_all(claims: Sequence[Claim], table: Table) -> list[Verdict]:
    """Return the verdicts on those claims whose figure there are runs of."""
    return [judge(claim, table) for claim in claims if claim.figure in table.figures]


def _judged(parts: Sequence[Part], table: Table) -> tuple[Judged, ...]:
    judged = []
    for part in parts:
        sample = part.sample(table)
        drowned = sample.least_error > CHANCE
        judged.append(Judged(part=part, found=estimate(sample, part.bound), drowned=drowned))
    return tuple(judged)


def _number(value: float) -> float | None:
    return rounded(value) if math.isfinite(value) else None
