"""Preparation at the coordinator: what is asked, and the code book that the noised answers give."""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
import scipy.special
from numpy.typing import NDArray

from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.budget import Budget
from fedpower.protocol.pooled import shares_cut
from fedpower.rules.codebook import UNSETTLED, CodeBook, Ranges
from fedpower.sums.survey import (
    CELL_SIDE,
    N_BINS,
    N_OCTAVES,
    NORM_EDGES,
    NORM_STEPS,
    STAGES,
    Stage,
    octave_edges,
    octave_of,
)

Array = NDArray[np.float64]

_FALSE_SEED = 0.02
"""The chance that noise alone makes an octave of any column one that holds rows for certain."""

_FALSE_FAR, _GAP = 1e-6, 2
"""The same for an octave more than so many beyond the next one that holds rows, or for norms far from the
others: a range that goes there for nothing leaves nothing of its column, so one fit in a million may."""

_NEXT = 2.0
"""An octave beside one that is in the range joins it from so many standard deviations of its noise on."""

CERTAIN, LIKE = 3.0, 0.2
"""A range has both signs where the other side's cells are so many standard deviations of their noise, or
one of them and as large a share of this side's. A bin that stands out as far is not cut."""

_SPARE = 0.06
"""A range is cut by k of its bins, at both ends together, where at most (k/16)³ of this share of the rows
may lie there."""

_FAR = 4.0
"""A range is far from 0 where its larger end is at most so many times the smaller one: two octaves."""

_CROWDED = N_BINS // 2
"""Its cells are taken to be in so many of its bins, if they may be."""

_LACK, _LACK_STDS = 0.03, 2.0
"""Cells are missing from a range where it lacks as large a share of them, and so many standard deviations
of the noise of what was counted."""

_HINT = 0.5
"""0 is added to a range of 1 alone from so many standard deviations of its noise on."""

_GAP_STDS = 3.0
"""A column has missing cells where their number stands so far above its noise; else it has none."""

_UNEVEN = 0.15
"""κ: what unequal shortening of rows counts beside noise, in units of the trace over √d."""

_CLEAR = 2.0
"""A column's variance stands above its noise from so many standard deviations of it on."""

_FLOOR = 1e-4
"""The least variance of a column in units of half its range squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The pooled answer to a stage."""

    sums: Array
    stds: tuple[float, ...]
    n_rows: int


def find_code_book(
    budget: Budget, columns: tuple[str, ...] | None, ranges: Ranges, groups: tuple[tuple[int, ...], ...] = ()
) -> Generator[Stage, Answered, CodeBook]:
    """Return the code book; yields each question, and is sent what was answered to it."""
    d = budget.n_features
    low, high = (np.zeros(d) for _ in range(2))
    for place, known in enumerate(ranges):
        if known is not None:
            low[place], high[place] = known
    open_columns = np.array([place for place in range(d) if ranges[place] is None], dtype=np.intp)
    ask = Stage(kind="octaves", n_features=d, open_columns=open_columns)
    outside, narrow = np.zeros(d), np.zeros(d, dtype=np.bool_)
    counted = _Missing(d)
    if open_columns.size:
        narrow = yield from _find_ranges(ask, low, high, outside, counted)
    answered = yield replace(ask, kind="means", low=low, high=high)
    counted.add(np.arange(d), answered.n_rows - answered.sums[2 * d :], answered)
    present = 1.0 - counted.shares()
    offset, scale, settled = _center_and_scale(answered, low, high, present)
    for group in map(list, groups):
        scale[group] = np.sqrt(np.sum(scale[group] ** 2))
    answered = yield replace(ask, kind="norms", low=low, high=high, offset=offset, scale=scale)
    bound = choose_bound(answered, d, std=_moment_std(budget, answered))
    counts, norms = _clear_norms(answered, d)
    clipped = None
    if counts.sum() > 0:
        clipped = shares_cut((norms / bound) ** 2, counts / counts.sum())
    settled &= ~narrow
    found_how = tuple(
        _how(known=ranges[place] is not None, settled=bool(settled[place])) for place in range(d)
    )
    mu = budget.mu(*STAGES)
    return CodeBook(
        columns=columns,
        offset=offset,
        scale=scale,
        low=low,
        high=high,
        bound=bound,
        found=found_how,
        epsilon=epsilon_of(mu, budget.left_delta),
        delta=budget.delta,
        mu=mu,
        n_rows=answered.n_rows,
        clipped=clipped,
        present=present,
        outside=outside,
    )


class _Missing:
    """The share of each column's cells that are missing, from all that was counted of them."""

    def __init__(self, n_features: int) -> None:
        self._weighted, self._weight = np.zeros(n_features), np.zeros(n_features)

    def add(self, places: NDArray[np.intp], counts: Array, answered: Answered) -> None:
        """Take note of noised numbers of missing cells in some columns."""
        std = answered.stds[-1] / answered.n_rows
        self._weighted[places] += counts / answered.n_rows / std**2
        self._weight[places] += 1.0 / std**2

    def shares(self) -> Array:
        """Return the shares: 0 where they do not stand above their noise, 95% at most."""
        weight = np.maximum(self._weight, np.finfo(np.float64).tiny)
        found = self._weighted / weight
        return np.where(found > _GAP_STDS / np.sqrt(weight), np.minimum(found, 0.95), 0.0)


def _find_ranges(
    ask: Stage, low: Array, high: Array, outside: Array, counted: _Missing
) -> Generator[Stage, Answered, NDArray[np.bool_]]:
    """Fill in the ranges of the open columns, what share of their cells is outside, and what is missing."""
    places, narrow = ask.open_columns, np.zeros(low.size, dtype=np.bool_)
    answered = yield ask
    counts = answered.sums.reshape(places.size, N_OCTAVES + 1)
    counted.add(places, counts[:, -1], answered)
    n_cells = answered.n_rows * (1.0 - counted.shares()[places])
    for place, found, total in zip(places, counts[:, :-1], n_cells, strict=True):
        low[place], high[place], outside[place] = octave_range(
            found, answered.stds[0], n_tests=places.size * N_OCTAVES, n_cells=float(total)
        )
    far = np.array([_is_far(low[place], high[place]) for place in places])
    for kind in ("bins", "zoom"):
        asked = places if kind == "bins" or not far.any() else places[far]
        mask = np.zeros(low.size)
        mask[asked] = 1.0
        answered = yield replace(
            ask, kind=kind, low=low.copy(), high=high.copy(), offset=None if kind == "bins" else mask
        )
        counts = answered.sums.reshape(places.size, N_BINS + 1)
        for index, place in enumerate(places):
            if place not in asked:
                continue
            counted.add(places[index : index + 1], counts[index, -1:], answered)
            if kind == "zoom" and not far[index]:
                continue
            total = answered.n_rows * (1.0 - float(counted.shares()[place]))
            first, last = trimmed(counts[index, :-1], answered.stds[0], total, _CROWDED if far[index] else 0)
            width, begin = (high[place] - low[place]) / N_BINS, low[place]
            far[index] &= last - first < _CROWDED
            narrow[place] = kind == "zoom" and first == last
            # Half a bin more keeps what is cut apart from what begins at an edge.
            more = 0.5 if kind == "bins" else 0.0
            low[place] = begin + max(0.0, first - more) * width
            high[place] = begin + min(float(N_BINS), last + 1 + more) * width
    return narrow


def _is_far(low: float, high: float) -> bool:
    """Return whether a range is far from 0 beside its width."""
    near, end = sorted((abs(low), abs(high)))
    return low * high > 0 and end <= _FAR * near


def octave_range(counts: Array, std: float, *, n_tests: int, n_cells: float) -> tuple[float, float, float]:
    """Return the range of a column from how many cells lie in each octave, noised, and what it lacks."""
    zero = counts.size // 2
    seeds = np.flatnonzero(counts > std * float(-scipy.special.ndtri(_FALSE_SEED / n_tests)))
    if seeds.size:
        seeds = _not_astray(seeds, counts, zero, std * float(-scipy.special.ndtri(_FALSE_FAR / n_tests)))
        first, last = int(seeds[0]), int(seeds[-1])
        if first < zero or last > zero:  # the octaves beside 0 itself are next to nothing
            first, last = _widened(counts, first, last, _NEXT * std)
    else:
        sizes = counts[zero:] + counts[zero::-1]
        sizes[0] /= 2
        near, far = _widened(sizes, *(int(np.argmax(sizes)),) * 2, _NEXT * std * math.sqrt(2.0))
        sides = [counts[zero + near : zero + far + 1], counts[zero - far : zero - near + 1]]
        positive = sides[0].sum() >= sides[1].sum()
        first, last = (zero + near, zero + far) if positive else (zero - far, zero - near)
    if first > zero or last < zero:
        mirrored = slice(2 * zero - last, 2 * zero - first + 1)
        own, other = float(counts[first : last + 1].sum()), float(counts[mirrored].sum())
        noise = std * math.sqrt(last - first + 1)
        if other > CERTAIN * noise or other > max(noise, LIKE * own):
            first, last = min(first, mirrored.start), max(last, mirrored.stop - 1)
    first, last, lack = _with_the_likeliest(counts, std, first, last, n_cells)
    return octave_edges(first)[0], octave_edges(last)[1], lack


def _with_the_likeliest(
    counts: Array, std: float, first: int, last: int, n_cells: float
) -> tuple[int, int, float]:
    """Return a range of octaves that lacks few of the cells, and the share that it lacks all the same."""
    zero = counts.size // 2
    one = int(octave_of(np.ones((1, 1)))[0, 0])
    if first == last == zero:
        others = np.where(np.arange(counts.size) == zero, -np.inf, counts)
        fullest = int(np.argmax(others))
        last = one if counts[fullest] - counts[one] < CERTAIN * std else fullest
        first, last = min(zero, last), max(zero, last)
    elif first == last == one and counts[zero] > _HINT * std:
        first = zero
    while True:
        held = _held(counts, std, first, last)
        lack, noise = n_cells - float(counts[held].sum()), std * math.sqrt(held.size)
        if lack <= max(_LACK_STDS * noise, _LACK * n_cells):
            return first, last, 0.0
        mirror = 2 * zero - (last if abs(last - zero) >= abs(first - zero) else first)
        near = {zero, first - 1, last + 1, mirror, one} & set(range(counts.size))
        near -= set(range(first, last + 1))
        added = max(near, key=lambda at: counts[at], default=first)
        if first <= added <= last or counts[added] < std:
            return first, last, min(lack / n_cells, 1.0)
        first, last = min(first, added), max(last, added)


def _held(counts: Array, std: float, first: int, last: int) -> NDArray[np.intp]:
    """Return the octaves of a range in which its cells are: those that stand out, and two beside them."""
    clear = np.flatnonzero(counts[first : last + 1] > _NEXT * std) + first
    near = np.unique(clear[:, np.newaxis] + np.arange(-2, 3))
    return near[(near >= first) & (near <= last)]


def _not_astray(seeds: NDArray[np.intp], counts: Array, zero: int, certain: float) -> NDArray[np.intp]:
    """Return the octaves that are certain, and others of no larger size but for a gap of `_GAP`."""
    sizes = np.abs(seeds - zero)
    sure = counts[seeds] > certain
    largest = int(sizes[sure].max() if sure.any() else sizes[np.argmax(counts[seeds])])
    for size in np.unique(sizes):
        if largest < size <= largest + _GAP:
            largest = int(size)
    return seeds[sizes <= largest]


def _widened(counts: Array, first: int, last: int, least: float) -> tuple[int, int]:
    """Return places from first to last, and on to either side while the next one exceeds ``least``."""
    while first > 0 and counts[first - 1] > max(least, 0.5):
        first -= 1
    while last < counts.size - 1 and counts[last + 1] > max(least, 0.5):
        last += 1
    return first, last


def trimmed(counts: Array, std: float, n_rows: float, crowded: int = 0) -> tuple[int, int]:
    """Return the first and the last bin of a range that are kept: the fewest that lie side by side."""
    size = counts.size
    below = np.append(0.0, np.cumsum(counts + (n_rows - counts.sum()) / size))
    clear = np.flatnonzero(np.diff(below) > max(CERTAIN * std, _SPARE * n_rows))
    for width in range(1, size):
        outside, cut = n_rows - (below[width:] - below[:-width]), size - width
        first = int(np.argmin(outside))
        if clear.size and not first <= clear[0] <= clear[-1] < first + width:
            continue
        noise = std * math.sqrt(cut * width / size)
        spare = _SPARE * n_rows * (cut / size) ** 3
        if outside[first] + (noise if width > crowded else -noise) <= spare:
            return first, first + width - 1
    return 0, size - 1


def _center_and_scale(
    answered: Answered, low: Array, high: Array, present: Array
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return offset and scale of the columns, and where the variance stood above its noise."""
    half, middle, d = (high - low) / 2, (high + low) / 2, low.size
    n_cells = answered.n_rows * present
    noise = answered.stds[0] / (n_cells * CELL_SIDE)
    means = np.clip(answered.sums[:d] / (n_cells * CELL_SIDE), -1.0, 1.0)
    squares = answered.sums[d : 2 * d] / (n_cells * CELL_SIDE**2)
    variances = squares - means**2 + noise**2
    least = np.maximum(_FLOOR, noise)
    settled = variances > _CLEAR * np.maximum(_FLOOR, noise * np.sqrt(1.0 + 4.0 * means**2))
    scale = half * np.sqrt(np.clip(variances, least, 1.0))
    return middle + half * means, scale, settled


def choose_bound(answered: Answered, n_features: int, *, std: float) -> float:
    """Return B, where the noise it brings and the bias from shortening rows balance."""
    edges = NORM_EDGES * math.sqrt(n_features)
    counts, norms = _clear_norms(answered, n_features)
    if counts.sum() <= 0:
        return float(edges[np.searchsorted(NORM_EDGES, 1.0)])
    median = edges[min(int(np.searchsorted(np.cumsum(counts), counts.sum() / 2)), edges.size - 1)]
    energy = counts * norms**2
    trace = float(energy.sum() / counts.sum())
    energy /= energy.sum()

    def cost(bound: float) -> float:
        weights = np.minimum(1.0, (bound / norms) ** 2)
        kept = float(energy @ weights)
        uneven = float(energy @ weights**2) / kept**2 - 1.0
        noise = bound**2 * std * math.sqrt(2.0 * n_features) / (trace * kept)
        return noise + _UNEVEN * uneven / math.sqrt(n_features)

    return float(min((edge for edge in edges if edge <= 2.0 * median), key=cost))


def _clear_norms(answered: Answered, n_features: int) -> tuple[Array, Array]:
    """Return the counts of norms that stand above their noise, others as 0, and the bins' middles."""
    edges, std = NORM_EDGES * math.sqrt(n_features), answered.stds[0]
    fullest = int(np.argmax(answered.sums))
    first, last = _widened(answered.sums, fullest, fullest, _NEXT * std)
    clear = answered.sums > std * float(-scipy.special.ndtri(_FALSE_FAR / answered.sums.size))
    clear[first : last + 1] = answered.sums[first : last + 1] > _NEXT * std
    counts = np.where(clear, answered.sums, 0.0)
    half_step = 2.0 ** (0.5 / NORM_STEPS)
    return counts, np.append(edges / half_step, edges[-1] * half_step)


def _moment_std(budget: Budget, answered: Answered) -> float:
    """Return about the pooled noise of the moment to come, from that of the stage just answered."""
    share = budget.share("norms") / (1.0 - budget.share(*STAGES))
    count_std = answered.stds[0] / math.sqrt(2.0)  # of sensitivity 1 at the stage's share
    return math.sqrt(2.0) * count_std * math.sqrt(share) / answered.n_rows


def _how(*, known: bool, settled: bool) -> str:
    begin = "range given" if known else "range found"
    return f"{begin}, mean and spread found" if settled else f"{begin}, {UNSETTLED}"
