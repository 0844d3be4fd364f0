"""A result as its reader sees it: angles, headline, findings and the likely cause of finding nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpower.linalg import Array
from fedpower.protocol.solvers.angles import CONFIDENCE, DETERMINED
from fedpower.report.record import ScoreRecord
from fedpower.report.text import degrees, listed

if TYPE_CHECKING:
    from fedpower.report.result import Result

POOLED = "all silos"  # the name of counts of which only the sum over silos is known
_FALSE = 0.05  # the chance that noise alone shows any bin of a grid as one that holds rows
_LITTLE = 0.1  # a bound is far too large where rows use less than this share of its square
_FAR = 10.0  # rows are far from zero where their mean's square is so many times their variance
_ENOUGH_ROWS = 1000  # per column: from there on, at ε = 1 or more, the number of rows is not the cause
_SMALL_EPSILON = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreHistogram:
    """How many rows are in each bin of a grid over their scores on the first two components.

    Attributes
    ----------
    edges
        Where bins meet, a row for each component. The outermost bins take what is beyond.
    counts
        By silo, or under ``"all silos"`` where their sum is all that was released: B×B numbers, pc1 by
        row and pc2 by column. They are noised, so some are negative; ``fractions`` explains why some are
        not whole numbers. Persons count by their weights.
    noise_std
        Standard deviation of the noise in each of them; 0 where they are exact.
    """

    edges: Array
    counts: Mapping[str, Array]
    noise_std: float

    @classmethod
    def of(cls, record: ScoreRecord) -> "ScoreHistogram":
        counts = {name: np.array(grid, dtype=np.float64) for name, grid in record.counts.items()}
        bins = len(next(iter(counts.values())))
        edges = np.array([np.linspace(-reach, reach, bins + 1) for reach in record.reach])
        return cls(edges=edges, counts=counts, noise_std=record.noise_std)

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
        """From which count on a bin holds rows: noise alone reaches it in 5% of such pictures."""
        if self.noise_std == 0:
            return 0.5
        return -self.noise_std * NormalDist().inv_cdf(_FALSE / (self.edges.shape[1] - 1) ** 2)

    @property
    def fractions(self) -> str | None:
        """Why counts are not whole numbers of rows, in a sentence; None where they are."""
        if all(np.array_equal(grid, np.rint(grid)) for grid in self.counts.values()):
            return None
        if POOLED in self.counts and self.noise_std > 0:
            return "Counts are fractions: each silo adds its share of the noise in steps finer than a row."
        return "Counts are fractions: all rows of a person count for one together."

    def cells(self, silo: str) -> Iterator[tuple[float, float, float, float, float]]:
        """Yield each bin of a silo's grid: its ends on pc1, its ends on pc2, and the count."""
        bins = product(*map(pairwise, self.edges.tolist()))
        for (first, second), count in zip(bins, self.counts[silo].ravel().tolist(), strict=True):
            yield *first, *second, count


def findings(fit: "Result") -> list[str]:
    """Return which components are determined, which only together, and what limits them."""
    exact, angles, clipping = fit.record.privacy.mode == "none", fit.angles, fit.record.clipping
    sentences = angle_sentences(fit.component_angles, fit.subspace_angles, fit.n_features, exact=exact)
    if not exact and clipping is not None and any(fit.determined):
        place = fit.determined.index(True)
        whole, noise = degrees(angles.components[place]), degrees(angles.noise_components[place])
        share = f"about {clipping.energy:.0%}" if clipping.energy >= 0.01 else "less than 1%"
        rest = f"the rest comes from rows that the bound shortens ({share} of their squared length)"
        sentences.append(f"Of the {whole} of pc{place + 1}, noise makes {noise}; {rest}.")
    cause = cause_of_noise(fit)
    return sentences if cause is None else [*sentences, f"{cause[0].upper()}{cause[1:]}."]


def angle_sentences(components: Array, subspaces: Array, n_features: int, *, exact: bool) -> list[str]:
    """Return which components are determined, and which only together; if exact, only the latter."""
    # All columns together span everything, whatever the rows are.
    joint = np.where(np.arange(1, len(subspaces) + 1) < n_features, subspaces, 90.0) <= DETERMINED
    determined = components <= DETERMINED
    sentences = []
    if not exact:
        places, confidence = np.flatnonzero(determined).tolist(), f"at {CONFIDENCE:.0%} confidence"
        verb, subject = ("is", "it") if len(places) == 1 else ("are", "each")
        within = f"{subject} is within 45° of the component that the rows have, {confidence}."
        some = f"{component_names(places)} {verb} determined: {within}"
        none = f"No component is determined: each may be more than 45° off, {confidence}."
        sentences.append(some if places else none)
        if not joint.any():
            return sentences
    for fixed, run in groupby(range(len(components)), lambda place: bool(determined[place])):
        places = list(run)
        last = max((place for place in places if joint[place]), default=-1)
        group = [place for place in places if place <= last]
        rest = [place for place in places if place > last]
        if group and not fixed:
            one = len(group) == 1
            verb = "is not determined by itself" if one else "cannot be told apart"
            before = f" with {component_names(range(group[0]))}" if group[0] else ""
            sentences.append(
                f"{component_names(group)} {verb}; together{before} {'it is' if one else 'they are'} within "
                f"{degrees(subspaces[last])}."
            )
        if rest and not fixed:
            why = ": without variance, or with the same as others" if exact else ""
            verb = "is" if len(rest) == 1 else "are"
            sentences.append(f"{component_names(rest)} {verb} not determined{why}.")
    return sentences


def component_names(places: Sequence[int]) -> str:
    """Return the names of components at places from 0: pc1, pc2 and pc4 to pc9."""
    words: list[str] = []
    for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        names = [f"pc{place + 1}" for _, place in run]
        words += names if len(names) < 4 else [f"{names[0]} to {names[-1]}"]
    return listed(words)


def cause_of_noise(fit: "Result") -> str | None:
    """Return why nothing is determined and what would help; None where something is."""
    record = fit.record
    if not record.privacy.is_private or fit.has_directions:
        return None
    bound, epsilon = record.parameters.get("row_norm"), float(record.parameters["epsilon"])
    if bound is not None and (cause := _cause_in_the_bound(fit, bound)) is not None:
        return cause
    rows, columns, things = fit.n_samples, fit.n_features, f"{record.counted}s"
    smaller = "" if bound is None else ", or a smaller bound"
    if epsilon < _SMALL_EPSILON and rows >= _ENOUGH_ROWS * columns * epsilon:
        return f"the likely cause is epsilon={epsilon:g}, which is small; give a larger one{smaller}"
    if rows * min(epsilon, 1.0) < _ENOUGH_ROWS * columns:
        few = f"the number of {things}, {rows:,}, which is small for {columns} columns at epsilon={epsilon:g}"
        advice = f"bring more {things}, leave columns out, or take a larger epsilon{smaller}"
        return f"the likely cause is {few}; {advice}"
    advice = "give ranges or public scales, or leave columns out"
    return f"the likely cause is the columns: no direction stands out, or a few have large units; {advice}"


def _cause_in_the_bound(fit: "Result", bound: float) -> str | None:
    given = fit.record.parameters.get("scale")
    scale: Any = 1.0 if given is None else np.asarray(given, dtype=np.float64)
    unit = 1.0  # of a variance, in those of the bounded rows: of standardised columns, on average
    if fit.record.standardized and fit.scale is not None:
        unit = float(np.mean((fit.scale / scale) ** 2))
    first, share = float(fit.explained_variance[0]), float(fit.explained_variance_ratio[0])
    spread = unit * first / share if share > 0 else 0.0
    middle = float(np.sum(((fit.mean - (0.0 if fit.center is None else fit.center)) / scale) ** 2))
    edge = unit * first  # of noise, or nearly
    used = spread + middle + edge
    if used < _LITTLE * bound**2:
        squares = f"rows have a mean square of about {used:.2g} at most, and noise is made for {bound**2:.2g}"
        return f"the likely cause is the bound: {squares}; give row_norm={2.0 * math.sqrt(used):.2g} or so"
    if middle > _FAR * max(spread, edge):
        advice = "give public centres, or leave row_norm out to have them found"
        return f"the likely cause is the offset: rows are far from zero for their spread; {advice}"
    return None
