"""Private preparation: from noised tallies of the rows to a code book of the columns."""

import math
from collections.abc import Generator
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import Array
from fedpower.privacy.accounting import epsilon_of
from fedpower.protocol.coordinator import Ask, Round
from fedpower.protocol.pooled import shares_cut
from fedpower.protocol.query import Tally, tally_parts
from fedpower.protocol.solvers.sums import Sums, Total
from fedpower.rules.codebook import UNSETTLED, CodeBook
from fedpower.sums.survey import (
    CELL_SIDE,
    N_BINS,
    N_OCTAVES,
    NORM_EDGES,
    NORM_STEPS,
    STAGES,
    Stage,
    StageKind,
    octave_edges,
    octave_of,
)

_FALSE_SEED = 0.02  # chance that noise makes an octave of any column one that certainly holds rows
# The same for an octave more than `_GAP` beyond the next one that holds rows, or for norms far from others: a
# range that goes there for nothing leaves nothing of its column, so one fit in a million may.
_FALSE_FAR, _GAP = 1e-6, 2
_NEXT = 2.0  # an octave next to the range joins it from so many standard deviations of its noise on
# A range has both signs where the other side's cells are so many standard deviations of their noise, or one
# of them and as large a share of this side's. A bin that stands out as far is not cut.
_CERTAIN, _LIKE = 3.0, 0.2
_SPARE = 0.06  # k bins are cut, at both ends together, where (k/16)³ of this share of rows may be there
_FAR = 4.0  # a range is far from 0 where its ends differ by at most this factor: two octaves
_CROWDED = N_BINS // 2  # its cells are taken to be in so many of its bins, if they may be
# Cells are missing from a range where as large a share of them is, and so many standard deviations of noise.
_LACK, _LACK_STDS = 0.03, 2.0
_HINT = 0.5  # 0 is added to a range of 1 alone from so many standard deviations of its noise on
_GAP_STDS = 3.0  # a column has missing cells where their number stands so far above its noise
_UNEVEN = 0.15  # κ: what unequal shortening of rows counts next to noise, in units of the trace over √d
_CLEAR = 2.0  # a column's variance stands above its noise from so many standard deviations of it on
_FLOOR = 1e-4  # the least variance of a column in units of half its range squared


def find_code_book(sums: Sums) -> Generator[Ask, Round, CodeBook]:
    """Return the code book that a study's tallies give, each asked for with what those before show."""
    study, d = sums.study, sums.study.n_features
    budget, parts = study.budget, tally_parts(study)
    places = study.open_columns
    low, high = np.array([known or (0.0, 0.0) for known in study.ranges]).T.copy()
    outside, narrow, missing = np.zeros(d), np.zeros(d, dtype=np.bool_), _Missing(d)

    def tally(kind: StageKind, **vectors: Array) -> Generator[Ask, Round, Total]:
        stage = Stage(kind=kind, n_features=d, open_columns=places, **vectors)
        found = yield from sums.total(Tally(stage=stage, per_unit=study.counted_per_unit))
        return replace(found, values=found.values / parts, stds=tuple(std / parts for std in found.stds))

    if places.size:
        octaves = yield from tally("octaves")
        counts = octaves.values.reshape(places.size, N_OCTAVES + 1)
        missing.add(places, counts[:, -1], octaves)
        n_cells = octaves.n_rows * (1.0 - missing.shares()[places])
        for place, held, cells in zip(places, counts[:, :-1], n_cells, strict=True):
            low[place], high[place], outside[place] = octave_range(
                held, octaves.stds[0], n_tests=places.size * N_OCTAVES, n_cells=float(cells)
            )
        ends = np.sort(np.abs([low, high]), axis=0)[:, places]
        far = (low[places] * high[places] > 0) & (ends[1] <= _FAR * ends[0])
        kind: StageKind
        for kind in ("bins", "zoom"):
            asked = np.ones_like(far) if kind == "bins" or not far.any() else far
            mask: dict[str, Array] = (
                {} if kind == "bins" else {"offset": np.isin(np.arange(d), places[asked]).astype(float)}
            )
            bins = yield from tally(kind, low=low.copy(), high=high.copy(), **mask)
            counts = bins.values.reshape(places.size, N_BINS + 1)
            missing.add(places[asked], counts[asked, -1], bins)
            n_cells = bins.n_rows * (1.0 - missing.shares()[places])
            for index in np.flatnonzero(asked if kind == "bins" else asked & far):
                place = places[index]
                first, last = trimmed(
                    counts[index, :-1], bins.stds[0], float(n_cells[index]), _CROWDED if far[index] else 0
                )
                width, begin = (high[place] - low[place]) / N_BINS, low[place]
                far[index] &= last - first < _CROWDED
                narrow[place] = kind == "zoom" and first == last
                # Half a bin more keeps what is cut apart from what begins at an edge.
                more = 0.5 if kind == "bins" else 0.0
                low[place] = begin + max(0.0, first - more) * width
                high[place] = begin + min(float(N_BINS), last + 1 + more) * width
    means = yield from tally("means", low=low, high=high)
    missing.add(np.arange(d), means.n_rows - means.values[2 * d :], means)
    present = 1.0 - missing.shares()
    offset, scale, settled = _center_and_scale(means, low, high, present)
    for group in map(list, study.groups):
        scale[group] = np.sqrt(np.sum(scale[group] ** 2))
    norms = yield from tally("norms", low=low, high=high, offset=offset, scale=scale)
    # The noise of the moment to come, from that of these counts, whose sensitivity is √2.
    share = budget.share("norms") / (1.0 - budget.share(*STAGES))
    bound = choose_bound(norms, d, std=norms.stds[0] * math.sqrt(share) / norms.n_rows)
    counts, lengths = _clear_norms(norms, d)
    mu = budget.mu(*STAGES)
    settled &= ~narrow
    return CodeBook(
        columns=study.columns,
        offset=offset,
        scale=scale,
        low=low,
        high=high,
        bound=bound,
        found=tuple(
            f"range {'found' if known is None else 'given'}, {'mean and spread found' if sure else UNSETTLED}"
            for known, sure in zip(study.ranges, settled, strict=True)
        ),
        epsilon=epsilon_of(mu, budget.left_delta),
        delta=study.delta,
        mu=mu,
        n_rows=norms.n_rows,
        clipped=shares_cut((lengths / bound) ** 2, counts / counts.sum()) if counts.sum() > 0 else None,
        present=present,
        outside=outside,
    )


class _Missing:
    """The share of each column's cells that are missing, from all that was counted of them."""

    def __init__(self, n_features: int) -> None:
        self._weighted, self._weight = np.zeros(n_features), np.zeros(n_features)

    def add(self, places: NDArray[np.intp], counts: Array, found: Total) -> None:
        std = found.stds[-1] / found.n_rows
        self._weighted[places] += counts / found.n_rows / std**2
        self._weight[places] += 1.0 / std**2

    def shares(self) -> Array:
        """Return the shares: 0 where they do not stand above their noise, 95% at most."""
        weight = np.maximum(self._weight, np.finfo(np.float64).tiny)
        found = self._weighted / weight
        return np.where(found > _GAP_STDS / np.sqrt(weight), np.minimum(found, 0.95), 0.0)


def octave_range(counts: Array, std: float, *, n_tests: int, n_cells: float) -> tuple[float, float, float]:
    """Return the range of a column from how many cells lie in each octave, noised, and what it lacks."""
    zero = counts.size // 2
    seeds = np.flatnonzero(counts > std * -NormalDist().inv_cdf(_FALSE_SEED / n_tests))
    if seeds.size:
        seeds = _drop_outlying_octaves(seeds, counts, zero, std * -NormalDist().inv_cdf(_FALSE_FAR / n_tests))
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
        if other > _CERTAIN * noise or other > max(noise, _LIKE * own):
            first, last = min(first, mirrored.start), max(last, mirrored.stop - 1)
    first, last, lack = _completed(counts, std, first, last, n_cells)
    return octave_edges(first)[0], octave_edges(last)[1], lack


def _completed(counts: Array, std: float, first: int, last: int, n_cells: float) -> tuple[int, int, float]:
    """Return a range of octaves that lacks few of the cells, and the share that it lacks all the same."""
    zero = counts.size // 2
    one = int(octave_of(np.ones((1, 1)))[0, 0])
    if first == last == zero:
        others = np.where(np.arange(counts.size) == zero, -np.inf, counts)
        fullest = int(np.argmax(others))
        last = one if counts[fullest] - counts[one] < _CERTAIN * std else fullest
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


def _drop_outlying_octaves(
    seeds: NDArray[np.intp], counts: Array, zero: int, certain: float
) -> NDArray[np.intp]:
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
    clear = np.flatnonzero(np.diff(below) > max(_CERTAIN * std, _SPARE * n_rows))
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
    found: Total, low: Array, high: Array, present: Array
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return offset and scale of the columns, and where the variance stood above its noise."""
    half, middle, d = (high - low) / 2, (high + low) / 2, low.size
    n_cells = found.n_rows * present
    noise = found.stds[0] / (n_cells * CELL_SIDE)
    means = np.clip(found.values[:d] / (n_cells * CELL_SIDE), -1.0, 1.0)
    squares = found.values[d : 2 * d] / (n_cells * CELL_SIDE**2)
    variances = squares - means**2 + noise**2
    least = np.maximum(_FLOOR, noise)
    settled = variances > _CLEAR * np.maximum(_FLOOR, noise * np.sqrt(1.0 + 4.0 * means**2))
    scale = half * np.sqrt(np.clip(variances, least, 1.0))
    return middle + half * means, scale, settled


def choose_bound(found: Total, n_features: int, *, std: float) -> float:
    """Return B, where the noise it brings and the bias from shortening rows balance."""
    edges = NORM_EDGES * math.sqrt(n_features)
    counts, norms = _clear_norms(found, n_features)
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


def _clear_norms(found: Total, n_features: int) -> tuple[Array, Array]:
    """Return the counts of norms that stand above their noise, others as 0, and the bins' middles."""
    edges, std = NORM_EDGES * math.sqrt(n_features), found.stds[0]
    fullest = int(np.argmax(found.values))
    first, last = _widened(found.values, fullest, fullest, _NEXT * std)
    clear = found.values > std * -NormalDist().inv_cdf(_FALSE_FAR / found.values.size)
    clear[first : last + 1] = found.values[first : last + 1] > _NEXT * std
    counts = np.where(clear, found.values, 0.0)
    half_step = 2.0 ** (0.5 / NORM_STEPS)
    return counts, np.append(edges / half_step, edges[-1] * half_step)
