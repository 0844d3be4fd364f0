"""Counts over rows: of cells by size, which show where columns are, and of rows by norm and by scores."""

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.exceptions import InputError, ProtocolError
from fedpower.rows.arrays import DaskSource
from fedpower.rows.source import UNWATCHED, RowSource, Watch, block_rows, other_rows, require_count
from fedpower.rows.tables import NO_LEVEL, Odd
from fedpower.rows.units import FilledRows, Weights, require_no_unit, unit_of, with_gaps
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import CRows, Integers, Shift
from fedpower.sums.local import KernelChoice, LocalMoment, Reading
from fedpower.sums.passes import enrolled, spooled
from fedpower.sums.reduce import NotFiniteError, reduce, room, shares_blocks
from fedpower.values import LARGEST, Matrix, Vector, cached_property, is_sparse, shown

StageKind = Literal["octaves", "bins", "zoom", "means", "norms"]
STAGES: tuple[StageKind, ...] = ("octaves", "bins", "zoom", "means", "norms")
"""In the order in which they are asked."""

_OCTAVES = 40
"""Cells are distinguished by size from 2⁻⁴⁰ to 2⁴⁰; smaller ones count as 0, larger ones as the largest."""

N_OCTAVES = 4 * _OCTAVES + 1
"""Octaves of negative numbers, one place for 0, octaves of positive numbers; missing cells come after."""

N_BINS = 16
"""Equal parts of a range; missing cells come after."""

CELL_SIDE = 2**12
"""Q: a cell within its range is an integer from −Q to Q."""

NORM_STEPS = 4
"""Bins of norms to a factor of 2."""

NORM_EDGES = 2.0 ** (np.arange(-12, 17) / NORM_STEPS)
"""Where bins of norms meet, in units of √d."""

_NORM_UNIT, _NORM_REACH = 2.0**8, 2.0**12
"""Cells are rounded to 1/256 of their scale and cut at 4,096 of it: their sum of squares is exact, so that a
row's bin does not depend on the order of the sum."""

_CACHED_CELLS = 2**16
"""Cells that NumPy counts at once: what is made of them stays in a core's cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """A question to the rows; all that it holds is public."""

    kind: StageKind
    n_features: int
    open_columns: NDArray[np.intp]
    low: Vector | None = None
    high: Vector | None = None
    offset: Vector | None = None
    scale: Vector | None = None

    @cached_property
    def asked(self) -> NDArray[np.bool_]:
        if self.kind == "zoom" and self.offset is not None:
            return np.asarray(self.offset[self.open_columns] != 0.0)
        return np.ones(self.open_columns.size, dtype=np.bool_)

    @property
    def n_asked(self) -> int:
        return int(np.count_nonzero(self.asked))

    @property
    def size(self) -> int:
        if self.kind in ("means", "norms"):
            return 3 * self.n_features if self.kind == "means" else NORM_EDGES.size + 1
        return ((N_OCTAVES if self.kind == "octaves" else N_BINS) + 1) * self.open_columns.size

    def tally(self, block: Matrix, weights: Integers | None = None) -> Integers:
        """Return the sum of what each row of a block counts for, times its weight where it has one."""
        chosen = self.open_columns[self.asked]
        if self.kind in ("octaves", "bins", "zoom") and chosen.size < block.shape[1]:
            block = np.ascontiguousarray(block[:, chosen])
        found = (self._by_numpy if native.loops() is None else self._by_loop)(block, weights)
        if chosen.size == self.open_columns.size or self.kind != "zoom":
            return found
        counts = np.zeros((self.open_columns.size, N_BINS + 1), dtype=np.int64)
        counts[self.asked] = found.reshape(chosen.size, N_BINS + 1)
        return counts.reshape(-1)

    def _by_loop(self, block: Matrix, weights: Integers | None) -> Integers:
        """Return the integers of `_by_numpy`, by a loop in native/lattice.c."""
        rows, width = CRows.of(block), block.shape[1]
        if self.kind == "octaves":
            counts = np.zeros((N_OCTAVES + 1) * width, dtype=np.int64)
            native.call("fedpower_count_octaves", rows, weights, 2 * _OCTAVES, counts)
            if counts[N_OCTAVES :: N_OCTAVES + 1].any() and np.isinf(block).any():
                raise NotFiniteError("rows must hold finite numbers, got an infinite one; leave that row out")
            return counts
        given = (rows, weights, self._shift.columns, room("spare", (width + 8,)))
        if self.kind == "means":
            sums = np.zeros((3, width + -width % 8))
            native.call("fedpower_sum_cells", *given, sums)
            return sums[:, :width].reshape(-1).astype(np.int64)
        if self.kind == "norms":
            counts = np.zeros(NORM_EDGES.size + 1, dtype=np.int64)
            native.call("fedpower_count_norms", *given, self._edges, NORM_EDGES.size, counts)
            return counts
        counts = np.zeros((N_BINS + 1) * width, dtype=np.int64)
        native.call("fedpower_count_bins", *given, N_BINS + 1, counts)
        return counts

    def _by_numpy(self, block: Matrix, weights: Integers | None) -> Integers:
        cells = block if self.kind == "octaves" else self._shift.of(block)
        missing = np.isnan(cells)  # or in a range of no width
        if self.kind == "octaves":
            return _counts(np.where(missing, N_OCTAVES, octave_of(block)), N_OCTAVES + 1, weights)
        if self.kind in ("bins", "zoom"):  # the integer part of a shifted cell
            return _counts(np.where(missing, N_BINS, cells), N_BINS + 1, weights)
        cells = np.where(missing, 0.0, np.rint(cells))
        if self.kind == "norms":
            places = np.searchsorted(self._edges, np.einsum("ij,ij->i", cells, cells))
            return _counts(places[:, np.newaxis], NORM_EDGES.size + 1, weights)
        # Sums of integers, exact in float64: a block has fewer rows than 2⁵³/(T·Q²) = 2¹⁷.
        counts = np.ones(len(block)) if weights is None else weights.astype(np.float64)
        sums = np.concatenate([counts @ cells, counts @ (cells * cells), counts @ ~missing])
        return sums.astype(np.int64)

    @property
    def _edges(self) -> Vector:
        """Return where bins of norms meet, squared and in the units of rounded cells."""
        return NORM_EDGES**2 * (self.n_features * _NORM_UNIT**2)

    @cached_property
    def _shift(self) -> Shift:
        assert self.low is not None and self.high is not None  # noqa: PT018
        with np.errstate(all="ignore"):
            if self.kind == "norms":
                assert self.offset is not None and self.scale is not None  # noqa: PT018
                reach = _NORM_UNIT * _NORM_REACH
                return Shift(self.offset, _NORM_UNIT / self.scale, (self.low, self.high), (-reach, reach))
            if self.kind == "means":
                middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
                return Shift(middle, CELL_SIDE / half, within=(-CELL_SIDE, CELL_SIDE))
            chosen = self.open_columns[self.asked]
            gain = N_BINS / (self.high - self.low)[chosen]
            return Shift(self.low[chosen], gain, within=(0, N_BINS - 1))


def octave_of(cells: Matrix) -> Integers:
    """Return the place of each cell among the signed octaves, from 0 for the most negative."""
    _, power = np.frexp(cells)
    place = np.where(cells == 0, 0, np.clip(power + _OCTAVES, 0, 2 * _OCTAVES))
    return np.where(cells < 0, -place, place) + 2 * _OCTAVES


def octave_edges(place: int) -> tuple[float, float]:
    """Return where an octave begins and ends; the outermost ones go on without end."""
    distance = abs(place - 2 * _OCTAVES)
    if distance == 0:
        return -(2.0**-_OCTAVES), 2.0**-_OCTAVES
    near, far = 2.0 ** (distance - 1 - _OCTAVES), 2.0 ** (distance - _OCTAVES)
    return (near, far) if place > 2 * _OCTAVES else (-far, -near)


def _counts(places: NDArray[Any], n_places: int, weights: Integers | None) -> Integers:
    """Return how often each place of each column occurs, column after column; rows may have weights."""
    width = places.shape[1]
    cells = (places.astype(np.intp) + n_places * np.arange(width)).ravel()
    per_cell = None if weights is None else np.repeat(weights.astype(np.float64), width)
    return np.bincount(cells, weights=per_cell, minlength=n_places * width).astype(np.int64)


class CountSum:
    """Integers that are counted over rows, and how many rows there were."""

    def __init__(self, count: Callable[[Matrix, Integers | None], Integers], size: int) -> None:
        self._count = count
        self.total = np.zeros(size, dtype=np.int64)
        self.n_rows = 0

    def add(self, block: Any, weights: Weights | None = None) -> None:
        n_rows, width = block.shape
        own = None if weights is None else weights.tallies()
        whole = native.loops() is not None and not is_sparse(block) and block.flags.c_contiguous
        step = n_rows if whole else max(1, _CACHED_CELLS // width)
        for start in range(0, n_rows, step):
            part = block[start : start + step]
            rows = np.ascontiguousarray(part.toarray() if is_sparse(part) else part, dtype=np.float64)
            self.total += self._count(rows, None if own is None else own[start : start + step])
        self.n_rows += int(n_rows)

    def merge(self, other: "CountSum") -> None:
        self.total += other.total
        self.n_rows += other.n_rows


class Survey:
    """One silo's rows before their treatment is known: what preparation asks of them, and their moment."""

    treatment = RowTreatment()  # of the rows as they are

    def __init__(self, source: RowSource, **reading: Any) -> None:
        if isinstance(source, DaskSource):
            raise InputError(
                f"{source.name} must be rows in memory, a file or a query to be prepared, got rows at Dask's "
                "workers; give a code book, or row_norm"
            )
        self.how = how = Reading(on_lattice=True, **reading)
        if how.device is not None:
            require_no_unit(source, f"the device {how.device!r}")
        self._unit = unit_of(source)
        self.source = spooled(enrolled(with_gaps(source), contents=True, fingerprinted=how.fingerprinted))
        self.choice, self.watch = KernelChoice(), how.watch
        self._treated: LocalMoment | None = None
        self._means: tuple[Stage, Integers] | None = None

    @property
    def n_rows(self) -> int:
        return self.n_read if self._unit is None else self._unit.n_units

    @property
    def n_read(self) -> int:
        """Number of rows that a pass reads; for the silo's operator only where persons count."""
        known = self.source.n_rows if self._unit is None else None
        return self._by_octave.n_rows if known is None else known

    def prepare(self) -> None:
        """Read the rows once now: counted, checked and tallied by octave, which needs no earlier answer."""
        _ = self._by_octave

    @cached_property
    def _by_octave(self) -> CountSum:
        width = self.source.n_features
        stage = Stage(kind="octaves", n_features=width, open_columns=np.arange(width))
        return self._counted(stage, checked=native.loops() is None)

    @property
    def _octaves(self) -> Integers:
        return self._by_octave.total.reshape(self.source.n_features, -1)

    def tally(self, stage: Stage) -> Integers:
        """Return the sum over all rows that answers a question: as secret as the rows."""
        if stage.kind == "octaves":
            return self._octaves[stage.open_columns].reshape(-1)
        found = self._counted(stage)
        if found.n_rows != self.n_read:
            raise other_rows(self.source.name)
        if stage.kind == "means":
            self._means = stage, found.total
        return found.total

    def _counted(self, stage: Stage, *, checked: bool = False) -> CountSum:
        make = functools.partial(CountSum, stage.tally, stage.size)
        width = self.source.n_features
        workers = self.how.workers if shares_blocks(width) else 1
        return reduce(
            self.source, make, block_rows(width), watch=self.watch, workers=workers, checked=checked
        )

    def treated(self, treatment: RowTreatment | None = None) -> LocalMoment:
        """Return the moment of the rows by a treatment, to be summed in whole numbers."""
        assert treatment is not None, "rows that are yet to be prepared are asked for with their treatment"
        if self._treated is None or self._treated.treatment != treatment:
            assert treatment.center is not None, "preparation finds one"
            # Of persons with many rows, a missing cell may count for nothing.
            has_gaps = self._unit is not None or bool(self._octaves[:, -1].any())
            rows = FilledRows(self.source, treatment.center) if has_gaps else self.source
            self._treated = LocalMoment(rows, treatment, **vars(replace(self.how, fingerprinted=False)))
        return self._treated

    @property
    def filled(self) -> RowSource:
        """The rows, with missing cells at the offset that was last asked about."""
        return self.source if self._treated is None else self._treated.source

    @property
    def n_clipped(self) -> int | None:
        """How many rows the bound shortened once it is found; for the silo's operator only."""
        return None if self._treated is None else self._treated.n_clipped

    def columns_as_treated(self) -> None:
        """Return None: the treatment is yet to be found."""

    def treated_columns(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the cells within their ranges, less the offset and in scales found."""
        if self._treated is None or self._means is None:
            return None
        stage, total = self._means
        rule = self._treated.treatment
        assert stage.low is not None and stage.high is not None  # noqa: PT018
        assert rule.center is not None and rule.scale is not None  # noqa: PT018
        width = stage.n_features
        count = np.maximum(total[2 * width :], 1)  # of cells that are there, times what a row counts for
        mean = total[:width] / (count * CELL_SIDE)
        spread = np.sqrt(np.maximum(total[width : 2 * width] / (count * CELL_SIDE**2) - mean**2, 0))
        half, middle = (stage.high - stage.low) / 2, (stage.high + stage.low) / 2
        return (middle + half * mean - rule.center) / rule.scale, half * spread / rule.scale


Rows = LocalMoment | Survey
"""A silo's rows: treated, or yet to be prepared."""


# --- scores -----------------------------------------------------------------------------------------------

MOST_BINS = 24  # to a side of the grid
SCORE_CELLS = MOST_BINS**2

_HEAD = struct.Struct("<q")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreQuestion:
    """Two axes and a grid over the scores on them; all of it is public."""

    axes: Matrix
    offset: Vector
    reach: Vector
    n_bins: int

    def to_bytes(self) -> bytes:
        """Return the number of bins, the axes row by row, offset and reach."""
        numbers = np.concatenate([self.axes.reshape(-1), self.offset, self.reach])
        return _HEAD.pack(self.n_bins) + numbers.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, public: bytes, n_features: int) -> "ScoreQuestion":
        """Return the question in bytes that a coordinator sent; refuse what could fail on the rows."""
        if len(public) == _HEAD.size + 8 * (2 * n_features + 4):
            (n_bins,) = _HEAD.unpack_from(public)
            numbers = np.frombuffer(public, dtype="<f8", offset=_HEAD.size).astype(np.float64)
            axes, offset, reach = numbers[:-4].reshape(n_features, 2), numbers[-4:-2], numbers[-2:]
            fits = 1 <= n_bins <= MOST_BINS and (np.abs(numbers) <= LARGEST).all()
            if fits and (reach >= 1 / LARGEST).all():
                return cls(axes=axes, offset=offset, reach=reach, n_bins=n_bins)
        raise ProtocolError(
            f"scores must have two axes of {n_features} finite numbers, an offset, a positive "
            f"reach and 1 to {MOST_BINS} bins, got another question"
        )


def count_scores(
    source: RowSource, treatment: RowTreatment, question: ScoreQuestion, *, watch: Watch = UNWATCHED
) -> Integers:
    """Return how many rows are in each place of the grid, the first axis' places being slowest."""
    count = functools.partial(_counted, treatment, question)
    make = functools.partial(CountSum, count, question.n_bins**2)
    found = reduce(source, make, block_rows(source.n_features), watch=watch, checked=True)
    require_count(source.name, source.n_rows, found.n_rows)
    return found.total


def _counted(
    treatment: RowTreatment, question: ScoreQuestion, rows: Matrix, weights: Integers | None
) -> Integers:
    divisors, zeros = treatment.divisors(rows.shape[1]), np.zeros(rows.shape[1])
    shift = Shift(
        zeros if treatment.center is None else treatment.center,
        1.0 / (1.0 + zeros if divisors is None else divisors),
    )
    scores, squares = np.zeros((2, len(rows))), np.zeros(len(rows))
    with np.errstate(all="ignore"):
        # Column by column, so that what a row counts for does not depend on the others.
        for cells, axes in zip(shift.of(rows).T, question.axes, strict=True):
            scores += axes[:, np.newaxis] * cells
            squares += cells * cells
        if treatment.normalize:
            scores /= np.where(squares > 0, np.sqrt(squares), 1.0)
        scores = np.nan_to_num(scores - question.offset[:, np.newaxis])  # beyond float64 they count as 0
    bins = question.n_bins
    edges = [np.linspace(-reach, reach, bins + 1)[1:-1] for reach in question.reach]
    first, second = map(functools.partial(np.searchsorted, side="right"), edges, scores)
    # Sums of whole numbers, exact in float64: a block has far fewer rows than 2⁵³/T.
    return np.bincount(first * bins + second, weights=weights, minlength=bins**2).astype(np.int64)


# --- what only a silo's own operator sees about its rows --------------------------------------------------

ONLY_YOU = "(only you see this)"

_OFTEN = 0.02  # of a column's cells: fewer outside of its range are not worth a sentence
_FAR = 2.0  # scales between a column's mean and the others'
_NARROW = 20.0  # or how many times less it spreads than they do, elsewhere than around their mean
_FEW = 10  # rows of a silo of which nothing is said: they may be anywhere by chance


def odd_cells(source: RowSource) -> dict[str, Odd]:
    """Return by feature how many cells are outside its public range, or are none of the levels."""
    while hasattr(source, "rows"):
        source = source.rows
    return {name: odd for name, odd in getattr(source, "odd", {}).items() if odd.n_odd}


def other_words(source: RowSource) -> dict[str, tuple[int, int]]:
    """Return by column how many rows have none of its levels, and of how many rows."""
    found = {name: odd for name, odd in odd_cells(source).items() if odd.span == NO_LEVEL}
    return {name.removesuffix("=other"): (odd.n_odd, odd.n_present) for name, odd in found.items()}


def cells_warnings(source: RowSource) -> list[str]:
    """Return a sentence for each column with words that are no level, or many cells outside its range."""
    return [
        f"{count} of {n_rows} rows of {source.name} have none of the levels of column {column!r} and "
        f"count as 'other' {ONLY_YOU}"
        for column, (count, n_rows) in other_words(source).items()
    ] + [
        f"{odd.n_odd} of {odd.n_present} cells of {column!r} in {source.name} are outside its range from "
        f"{odd.span[0]:g} to {odd.span[1]:g} and count as its ends {ONLY_YOU}; check units and codes for "
        "missing values"
        for column, odd in odd_cells(source).items()
        if odd.span != NO_LEVEL and odd.n_odd > _OFTEN * odd.n_present
    ]


def pooled_columns(moments: Sequence[Rows]) -> list[tuple[Vector, Vector]] | None:
    """Return each silo's own mean and spread, less those of all silos together and in their spreads."""
    known = [columns for moment in moments if (columns := moment.columns_as_treated()) is not None]
    if len(known) < len(moments) or len(moments) < 2:
        return None
    shares = np.array([moment.n_rows for moment in moments], dtype=np.float64)
    shares /= shares.sum()
    means, spreads = (np.array(values) for values in zip(*known, strict=True))
    middle = shares @ means
    scale = np.sqrt(shares @ (spreads**2 + (means - middle) ** 2))
    scale[scale == 0] = 1.0
    return [((mean - middle) / scale, spread / scale) for mean, spread in zip(means, spreads, strict=True)]


def units_warning(
    rows: Rows,
    groups: Sequence[Sequence[int]],
    columns: Sequence[str] | None,
    treated: tuple[Vector, Vector] | None = None,
) -> list[str]:
    """Return a sentence on columns that may be in another unit, or none; levels have no unit."""
    treated = rows.treated_columns() if treated is None else treated
    if treated is None or rows.n_rows < _FEW:
        return []
    (mean, spread), levels = treated, {place for group in groups for place in group}
    far = np.abs(mean) > _FAR + 3 * spread / np.sqrt(rows.n_rows)
    narrow = (spread > 0) & (spread * _NARROW < 1) & (np.abs(mean) > 3 * spread)
    odd = [int(place) for place in np.flatnonzero(far | narrow) if place not in levels]
    if not odd:
        return []
    listed = shown([columns[place] if columns else f"x{place}" for place in odd])
    return [
        f"the values of {rows.source.name} in {listed} are far from those of all silos together; check "
        f"that {'it is' if len(odd) == 1 else 'they are'} in the agreed units {ONLY_YOU}"
    ]
