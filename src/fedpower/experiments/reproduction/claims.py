"""Claims, the paper's and ours: each is a function of the runs, and comes out as it comes out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedpower.experiments.reproduction.statistics import (
    CHANCE,
    Bound,
    Estimate,
    Sample,
    estimate,
)
from fedpower.experiments.reproduction.table import Table, rounded

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
        The same parts in other noise modes, by mode: told, and no part of the verdict.
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
        told = f"the {part.what} is {found.value:.3g}{spread} where {part.bound} was asked"
        others = len(self.parts) - 1
        if self.holds:
            kept = (
                f", and {'the other part holds' if others == 1 else f'the other {others} hold'} too"
            )
            hollow = f", though only because {DROWNED}" if self.weakest.drowned else ""
            return f"It holds: {told}{kept if others else ''}{hollow}."
        bound = part.bound
        if self.weakest.drowned:
            return f"It does not hold: {told}, because {DROWNED}."
        if bound.at_least <= found.value <= bound.at_most:
            return f"It is not shown: {told}, but {found.n} repetitions spread too widely."
        return f"It does not hold: {told}."

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
