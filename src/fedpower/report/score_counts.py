"""Counts of rows by their scores on the first two components, in the units of the scores."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.protocol.solvers.shared import CountedScores as ScoreCounts

Array = NDArray[np.float64]

POOLED = "all silos"
"""What counts are called of which only the sum over silos is known."""

_FALSE = 0.05
"""The chance that noise alone shows any place of a grid as one that holds rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreHistogram:
    """How many rows lie in each place of a grid over their scores on the first two components.

    Attributes
    ----------
    edges
        Where places meet, a row for each component. The outermost places take what lies beyond.
    counts
        By silo, or under ``"all silos"`` where their sum is all that was released: B×B numbers, pc1 by
        row and pc2 by column. They are noised, so some are negative; ``fractions`` says why some are no
        whole numbers. Persons count by their weights.
    noise_std
        Standard deviation of the noise in each of them; 0 where they are exact.
    """

    edges: Array
    counts: Mapping[str, Array]
    noise_std: float

    @property
    def pooled(self) -> Array:
        """The counts of all silos together; their noise is that of one times the root of their number."""
        return np.asarray(np.sum(list(self.counts.values()), axis=0))

    def together(self) -> "ScoreHistogram":
        """Return the counts of all silos together, as one."""
        std = self.noise_std * math.sqrt(len(self.counts))
        return replace(self, counts={POOLED: self.pooled}, noise_std=std)

    @property
    def clear(self) -> float:
        """From which count on a place holds rows: noise alone reaches it in 5% of such pictures."""
        if self.noise_std == 0:
            return 0.5
        places = (self.edges.shape[1] - 1) ** 2
        return -self.noise_std * NormalDist().inv_cdf(_FALSE / places)

    @property
    def fractions(self) -> str | None:
        """Why counts are no whole numbers of rows, in a sentence; None where they are."""
        if all(np.array_equal(each, np.rint(each)) for each in self.counts.values()):
            return None
        if POOLED in self.counts and self.noise_std > 0:
            return (
                "Counts are fractions because each silo adds its share of the noise in steps finer than "
                "a row."
            )
        return "Counts are fractions because all rows of a person count for one together."

    def cells(self, silo: str) -> Iterator[tuple[float, float, float, float, float]]:
        """Yield each place of a silo's grid: its ends on pc1, its ends on pc2, and the count."""
        first, second = self.edges.tolist()
        for row, numbers in enumerate(self.counts[silo].tolist()):
            for place, count in enumerate(numbers):
                yield first[row], first[row + 1], second[place], second[place + 1], count


def scores_record(found: ScoreCounts, unit: float) -> dict[str, Any]:
    """Return counts for a record, ``unit`` being what one of the treated rows' is in the scores'."""
    return {
        "reach": [float(each) * unit for each in found.reach],
        "noise_std": found.noise_std,
        "counts": {name or POOLED: counts for name, counts in found.counts.items()},
    }


def histogram_of(record: Mapping[str, Any]) -> ScoreHistogram | None:
    """Return the counts that a record gives; None where it has none."""
    known = record.get("scores")
    if known is None:
        return None
    try:
        counts = {name: np.array(each, dtype=np.float64) for name, each in known["counts"].items()}
        bins = len(next(iter(counts.values())))
        whole = all(each.shape == (bins, bins) for each in counts.values())
        first, second = (float(each) for each in known["reach"])
        std = float(known["noise_std"])
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        whole = False
    if not whole:
        raise InputError(
            "counts of scores in run.json must be as `fedpower fit` wrote them, got others; fit again or "
            "bring back the folder"
        )
    edges = np.array([np.linspace(-each, each, bins + 1) for each in (first, second)])
    return ScoreHistogram(edges=edges, counts=counts, noise_std=std)
