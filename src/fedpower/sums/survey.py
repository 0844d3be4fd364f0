"""Sums over rows that tell where their columns lie: whole numbers, before any bound is known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.dask_source import DaskSource
from fedpower.rows.gaps import FilledRows, with_gaps
from fedpower.rows.source import Block, Matrix, RowSource, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment, row_norms
from fedpower.rows.units import require_no_unit, tally_weights, unit_of
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.device import Device
from fedpower.sums.kernel import MEMORY_LIMIT, KernelChoice, block_rows
from fedpower.sums.local import ON_LATTICE, LocalMoment
from fedpower.sums.passes import enrolled

Integers = NDArray[np.int64]
StageKind = Literal["octaves", "bins", "zoom", "means", "norms"]
STAGES: tuple[StageKind, ...] = ("octaves", "bins", "zoom", "means", "norms")
"""In the order in which they are asked."""

_OCTAVES = 40
"""Cells are told apart by size from 2⁻⁴⁰ to 2⁴⁰; smaller ones count as 0, larger ones as the largest."""

N_OCTAVES = 4 * _OCTAVES + 1
"""Octaves of negative numbers, one place for 0, octaves of positive numbers; missing cells come after."""

N_BINS = 16
"""Equal parts of a range; missing cells come after."""

CELL_SIDE = 2**12
"""Q: a cell within its range is a whole number from −Q to Q."""

NORM_STEPS = 4
"""Bins of norms to a factor of 2."""

NORM_EDGES = 2.0 ** (np.arange(-12, 17) / NORM_STEPS)
"""Where bins of norms meet, in units of √d."""

_N_NORMS = NORM_EDGES.size + 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """A question to the rows; all that it holds is public."""

    kind: StageKind
    n_features: int
    open_columns: NDArray[np.intp]
    low: Vector | None = None
    high: Vector | None = None
    offset: Vector | None = None
    scale: Vector | None = None

    @property
    def n_asked(self) -> int:
        """In how many of the open columns it counts a row."""
        if self.kind == "zoom" and self.offset is not None:
            return int(np.count_nonzero(self.offset))
        return int(self.open_columns.size)

    @property
    def size(self) -> int:
        """How many whole numbers answer it."""
        return {
            "octaves": (N_OCTAVES + 1) * self.open_columns.size,
            "bins": (N_BINS + 1) * self.open_columns.size,
            "zoom": (N_BINS + 1) * self.open_columns.size,
            "means": 3 * self.n_features,
            "norms": _N_NORMS,
        }[self.kind]

    def tally(self, block: Block, weights: Integers | None = None) -> Integers:
        """Return the sum of what each row of a block counts for, times its weight where it has one."""
        rows = np.asarray(block.toarray() if is_sparse(block) else block, dtype=np.float64)
        with np.errstate(all="ignore"):
            if self.kind == "octaves":
                cells = rows[:, self.open_columns]
                return _counts(_or_missing(octave_of(cells), cells, N_OCTAVES), N_OCTAVES + 1, weights)
            assert self.low is not None
            assert self.high is not None
            if self.kind in ("bins", "zoom"):
                chosen = self.open_columns
                cells = rows[:, chosen]
                part = (cells - self.low[chosen]) / (self.high - self.low)[chosen]
                part = np.nan_to_num(part)  # of a range too narrow to divide by
                places = np.clip(np.floor(part * N_BINS), 0, N_BINS - 1).astype(np.int64)
                found = _counts(_or_missing(places, cells, N_BINS), N_BINS + 1, weights)
                if self.kind == "zoom":
                    assert self.offset is not None
                    found *= np.repeat(self.offset[chosen] != 0.0, N_BINS + 1)
                return found
            if self.kind == "means":
                half, middle = (self.high - self.low) / 2, (self.high + self.low) / 2
                part = np.nan_to_num((rows - middle) / half)
                whole = np.rint(np.clip(part, -1.0, 1.0) * CELL_SIDE).astype(np.int64)
                each = np.ones((len(rows), 1), np.int64) if weights is None else weights[:, None]
                counted = each * ~np.isnan(rows)
                first = counted * whole
                sums = (first, first * whole, counted)
                return np.concatenate([part.sum(axis=0) for part in sums])
            assert self.offset is not None
            assert self.scale is not None
            moved = (np.clip(rows, self.low, self.high) - self.offset) / self.scale
            moved[np.isnan(rows)] = 0.0
            norms = np.nan_to_num(row_norms(moved), nan=np.inf) / np.sqrt(self.n_features)
            places = np.searchsorted(NORM_EDGES, norms)
            return _counts(places[:, np.newaxis], _N_NORMS, weights)


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


def _or_missing(places: Integers, cells: Matrix, n_places: int) -> Integers:
    """Return the places of cells, with one more for those that are missing."""
    return np.where(np.isnan(cells), n_places, places)


def _counts(places: NDArray[np.generic], n_places: int, weights: Integers | None = None) -> Integers:
    """Return how often each place of each column occurs, column after column; rows may have weights."""
    width = places.shape[1]
    flat = places.astype(np.int64) + n_places * np.arange(width)
    if weights is None:
        return np.bincount(flat.ravel(), minlength=n_places * width)
    each = np.repeat(weights.astype(np.float64), width)
    # Sums of whole numbers, exact in float64: a block has far fewer rows than 2⁵³/T.
    found = np.bincount(flat.ravel(), weights=each, minlength=n_places * width)
    return found.astype(np.int64)


class Survey:
    """One silo's rows before their treatment is known: what preparation asks of them, and their moment."""

    def __init__(
        self,
        source: RowSource,
        *,
        device: Device | None = None,
        watch: Watch | None = None,
        workers: int = 1,
        fingerprinted: bool = False,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        if isinstance(source, DaskSource):
            raise InputError(
                f"{source.name} must be rows in memory, a file or a query to be prepared, got rows that "
                "lie at Dask's workers; give a code book, or row_norm"
            )
        if device is not None:
            require_no_unit(source, f"the device {device.name!r}")
        self._unit = unit_of(source)
        self.source = enrolled(with_gaps(source), contents=True, fingerprinted=fingerprinted)
        self.choice = KernelChoice(kind="moment", reason=ON_LATTICE)
        self.device = device
        self.watch = UNWATCHED if watch is None else watch
        self._workers = workers
        self._limit = memory_limit
        self._n_rows = self.source.n_rows if self._unit is None else None
        self._treated: LocalMoment | None = None
        self._has_gaps: bool | None = None
        self._means: tuple[Stage, Integers] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows; of persons, where these count."""
        if self._unit is not None:
            return self._unit.n_units
        return self.n_read

    @property
    def n_read(self) -> int:
        """Number of rows that a pass reads; for the silo's operator only where persons count."""
        if self._n_rows is None:
            self.prepare()
        assert self._n_rows is not None
        return self._n_rows

    def prepare(self) -> None:
        """Read the rows once now: counted and checked, so that later questions cannot fail on them."""
        self._n_rows = self._pass(lambda _: None)

    def tally(self, stage: Stage) -> Integers:
        """Return the sum over all rows that answers a question: as secret as the rows."""
        total = np.zeros(stage.size, dtype=np.int64)

        def add(block: Block) -> None:
            weights = None
            if self._unit is not None:
                block, counts = self._unit.parted(block)
                weights = tally_weights(counts, self._unit.most)
            np.add(total, stage.tally(block, weights), out=total)

        if self._pass(add) != self.n_read:
            raise InputError(
                f"{self.source.name} must hold the rows that were counted, got another number of them; "
                "start the silo again"
            )
        if stage.kind == "means":
            self._means = stage, total
        return total

    def treated(self, treatment: RowTreatment) -> LocalMoment:
        """Return the moment of the rows by a treatment, to be summed in whole numbers."""
        if self._treated is None or self._treated.treatment != treatment:
            if self._has_gaps is None:
                self.prepare()
            assert treatment.center is not None, "preparation finds one"
            self._treated = LocalMoment(
                FilledRows(self.source, treatment.center) if self._has_gaps else self.source,
                treatment,
                choice=self.choice,
                memory_limit=self._limit,
                device=self.device,
                watch=self.watch,
                workers=self._workers,
                on_lattice=True,
            )
        return self._treated

    @property
    def filled(self) -> RowSource:
        """The rows, with missing cells at the offset that was last asked about."""
        return self.source if self._treated is None else self._treated.source

    @property
    def clipped(self) -> tuple[int, int] | None:
        """How many rows the bound found shortened, and how many were read, for the silo's operator only."""
        return None if self._treated is None else (self._treated.n_clipped, self.n_read)

    def treated_columns(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the cells within their ranges, less the offset and in scales found."""
        if self._treated is None or self._means is None:
            return None
        stage, total = self._means
        rule = self._treated.treatment
        assert stage.low is not None
        assert stage.high is not None
        assert rule.center is not None
        assert rule.scale is not None
        width = stage.n_features
        count = np.maximum(total[2 * width :], 1)  # of cells that are there, times what a row counts for
        mean = total[:width] / (count * CELL_SIDE)
        spread = np.sqrt(np.maximum(total[width : 2 * width] / (count * CELL_SIDE**2) - mean**2, 0))
        half, middle = (stage.high - stage.low) / 2, (stage.high + stage.low) / 2
        return (middle + half * mean - rule.center) / rule.scale, half * spread / rule.scale

    def _pass(self, use: Callable[[Block], None]) -> int:
        """Hand over every block and return how many rows there were."""
        count, has_gaps = 0, False
        for block in self.source.blocks(block_rows(self.source.n_features)):
            self.watch.saw(int(block.shape[0]))
            count += int(block.shape[0])
            has_gaps = has_gaps or (not is_sparse(block) and bool(np.isnan(np.sum(block))))
            use(block)
        self._has_gaps = has_gaps
        return count
