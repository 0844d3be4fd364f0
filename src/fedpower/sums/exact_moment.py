"""The moment, the mean and the trace of bounded rows as whole numbers: the same bits everywhere."""

import functools
import itertools
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.errors import InputError
from fedpower.linalg.words import Words
from fedpower.rows.arrays import ArraySource
from fedpower.rows.source import Block, Matrix, RowSource, SparseBlock, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import PARTS, UnitRows, lattice_shares, unit_of
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.blocks import dense_blocks, full_blocks
from fedpower.sums.kernel import SPARSE_LIMIT, gram_rows, shares_blocks
from fedpower.sums.kernel import block_rows as usual_rows
from fedpower.sums.lattice_loops import room_for_squares
from fedpower.sums.lattice_rows import LatticeRows, RowLattice
from fedpower.sums.moment import require_center
from fedpower.sums.scatter import mirror

PANEL = 512
"""Columns that are multiplied together where d×d arrays are large."""

FEW_ROWS = 64
"""Rows of a d×d array that are added at once, so that what is made of them stays in a core's cache."""

PRODUCT_BYTES, WIDE_BYTES = 8 * 2**20, 64 * 2**20
"""Bytes of rows that are multiplied together, a core's own and all cores', within what is exact."""

_MOST_SQUARED_FEATURES, _SQUARED_BYTES = 2048, 128 * 2**20
"""Up to which width, and while the d×d arrays of all cores take so much at most, the compiled loop
squares wide rows: each core its own, where a BLAS has them share a product."""

_SQUARED_ROWS = 1024
"""Of a block of such rows: few enough that cores are done at about the same time."""

_MAGIC = b"fedpower.ExactMoments/1\n"
_HEAD = struct.Struct("<qqqq")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactMoments:
    """Sums over s bounded rows z in whole numbers of 1/S, read-only."""

    n_rows: int
    lattice: RowLattice
    total: NDArray[np.int64]
    squares: Words
    n_clipped: int
    parts: int = 1
    _square_total: int | None = field(init=False, repr=False, default=None)

    @property
    def mean(self) -> Vector:
        """The mean of the bounded rows."""
        return self.total / (self.n_rows * float(self.lattice.side) * self.parts)

    @property
    def spread(self) -> Vector:
        """The standard deviations of the bounded rows' columns."""
        low, *high = (np.diagonal(word) for word in self.squares.arrays())
        squares = Words(low=low, high=high[0] if high else None).to_float()
        squares /= self.n_rows * float(self.lattice.side) ** 2
        return np.sqrt(np.maximum(squares - self.mean**2, 0.0))

    @property
    def moment(self) -> Matrix:
        """The second moment about the origin, (1/s) Σ y yᵀ."""
        scale = self.n_rows * float(self.lattice.side) ** 2
        result: Matrix = self.squares.to_float() / scale
        return result

    def about(self, center: Vector | None = None) -> Matrix:
        """Return (1/s) Σ (y − center)(y − center)ᵀ."""
        moment = self.moment
        if center is None:
            return moment
        shift = require_center(center, self.total.size)
        cross = np.outer(shift, self.mean)
        return moment - cross - cross.T + np.outer(shift, shift)

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the moment about `center` times the basis."""
        return np.asarray(self.about(center) @ basis)

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        found = self.square_total / (self.n_rows * self.lattice.side**2)
        if center is None:
            return found
        shift = require_center(center, self.total.size)
        return found - 2 * float(shift @ self.mean) + float(shift @ shift)

    def diagonal(self, center: Vector | None = None) -> Vector:
        """Return the diagonal of the moment about `center`."""
        return np.asarray(np.diagonal(self.about(center)))

    @property
    def square_total(self) -> int:
        """Σ ‖z‖², of which one row has at most S²."""
        found = self._square_total
        if found is None:
            if self.squares.high is None and self.parts == 1:
                found = int(self.squares.low.trace())  # of one word, so at most 2⁶²
            else:
                words = [np.diagonal(word) for word in self.squares.arrays()]
                high = words[1] if words[1:] else None
                found = int(sum(Words(low=words[0], high=high).to_ints()))
            object.__setattr__(self, "_square_total", found)
        return found

    def merge(self, other: "ExactMoments") -> "ExactMoments":
        """Return the sums over both sets of rows."""
        if (self.lattice, self.total.size, self.parts) != (other.lattice, other.total.size, other.parts):
            raise InputError(
                "sums over rows must have the same columns and lattice to be merged, got "
                f"{self.total.size} columns of {self.lattice.bits} bits and {other.total.size} of "
                f"{other.lattice.bits}; make them again alike"
            )
        total = ExactSum(self.total.size, self.lattice)
        total.take(self)
        total.take(other)
        return total.result(parts=self.parts)

    def times(self, copies: int) -> "ExactMoments":
        """Return the sums over so many copies of every row, fewer than 2³⁰."""
        if copies == 1:
            return self
        squares = self.squares.two()
        assert squares.high is not None
        return _frozen(
            n_rows=self.n_rows * copies,
            lattice=self.lattice,
            total=self.total * copies,
            squares=Words(low=squares.low * copies, high=squares.high * copies).two(),
            n_clipped=self.n_clipped * copies,
            parts=self.parts,
        )

    def to_bytes(self) -> bytes:
        """Return a canonical encoding: equal sums have equal bytes, on every machine."""
        width = int(self.total.size)
        below = np.tril_indices(width)
        return b"".join(
            [
                _MAGIC,
                _HEAD.pack(self.n_rows, self.n_clipped, self._kind, width),
                self.total.astype("<i8").tobytes(),
                *(word[below].astype("<i8").tobytes() for word in self.squares.arrays()),
            ]
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> "ExactMoments":
        """Return the sums that `to_bytes` encoded, or refuse bytes that are none."""
        start = len(_MAGIC) + _HEAD.size
        if raw[: len(_MAGIC)] != _MAGIC or len(raw) < start:
            raise InputError(
                "an exact moment must be encoded by this version of fedpower, got other bytes; make it "
                "again from the rows"
            )
        n_rows, n_clipped, kind, width = _HEAD.unpack_from(raw, len(_MAGIC))
        lattice, parts = RowLattice(kind & 0xFF), 1 << (kind >> 8 & 0x3F)
        half = width * (width + 1) // 2
        n_words = 1 if n_rows <= lattice.word_rows else 2
        if n_rows < 1 or width < 1 or len(raw) != start + 8 * (width + n_words * half):
            raise InputError(
                "an exact moment must be encoded whole, got bytes of another length than it says; make "
                "it again from the rows"
            )
        numbers = np.frombuffer(raw, dtype="<i8", offset=start).astype(np.int64)
        words = [
            _symmetric(numbers[width + place * half : width + (place + 1) * half], width)
            for place in range(n_words)
        ]
        return _frozen(
            n_rows=n_rows,
            lattice=lattice,
            total=numbers[:width].copy(),
            squares=Words(low=words[0], high=words[1] if n_words == 2 else None),
            n_clipped=n_clipped,
            parts=parts,
        )

    @property
    def _kind(self) -> int:
        """The bits of S and those of P, as one number."""
        return self.lattice.bits | (self.parts.bit_length() - 1) << 8

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ExactMoments)
            and (self.n_rows, self.n_clipped, self.lattice, self.parts)
            == (other.n_rows, other.n_clipped, other.lattice, other.parts)
            and np.array_equal(self.total, other.total)
            and self.squares.equals(other.squares)
        )

    def __hash__(self) -> int:
        return hash((self.n_rows, self.n_clipped, self.lattice, self.total.tobytes()))


class _Crew:
    """Threads that do parts of one piece of work."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool: ThreadPoolExecutor | None = None

    def each(self, count: int, work: Callable[[int, slice], Any]) -> list[Any]:
        """Return what ``work`` gives for every thread's number and its part of ``count`` things."""
        n_parts = min(self.size, max(1, count))
        if n_parts == 1:
            return [work(0, slice(0, count))]
        edges = np.linspace(0, count, n_parts + 1, dtype=int).tolist()
        parts = [slice(*edge) for edge in itertools.pairwise(edges)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size, thread_name_prefix="rows")
        return list(self._pool.map(work, range(len(parts)), parts))

    def __enter__(self) -> "_Crew":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _add_integers(into: NDArray[np.int64], values: NDArray[Any], _: int, rows: slice) -> None:
    """Add whole numbers of any dtype to integers, a few rows at a time."""
    for start in range(rows.start, rows.stop, FEW_ROWS):
        part = slice(start, min(start + FEW_ROWS, rows.stop))
        # Made integers first: a sum of both kinds would be one of floats.
        into[part] += values[part].astype(np.int64, copy=False)


def _put_integers(into: NDArray[np.int64], values: NDArray[Any], _: int, rows: slice) -> None:
    """Put whole numbers of any dtype where there are zeros."""
    into[rows] = values[rows]


class ExactSum:
    """The sums so far, in 64-bit integers; past `RowLattice.word_rows` rows in two words."""

    def __init__(self, n_features: int, lattice: RowLattice) -> None:
        self.lattice = lattice
        self.n_rows, self.n_clipped = 0, 0
        self._total = np.zeros(n_features, dtype=np.int64)
        self._low = np.zeros((n_features, n_features), dtype=np.int64)
        self._high: NDArray[np.int64] | None = None
        self._uncarried = 0
        self._lock = threading.Lock()

    def add(
        self,
        n_rows: int,
        n_clipped: int,
        total: NDArray[Any],
        squares: Iterable[tuple[int, int, NDArray[Any]]],
        crew: "_Crew | None" = None,
    ) -> None:
        """Add sums over rows, at most `RowLattice.word_rows` of them, in whole numbers of any dtype."""
        crew = _Crew(1) if crew is None else crew
        with self._lock:
            put = _add_integers if self.n_rows else _put_integers
            self._make_room(n_rows)
            self._count(n_rows, n_clipped, total)
            for row, column, values in squares:
                stop = row + values.shape[0], column + values.shape[1]
                into = self._low[row : stop[0], column : stop[1]]
                crew.each(values.shape[0], functools.partial(put, into, values))

    def add_sparse(self, n_rows: int, n_clipped: int, total: NDArray[Any], squares: Any) -> None:
        """Add the same with Σ z zᵀ as a sparse matrix of integers, which has no place twice."""
        with self._lock:
            self._make_room(n_rows)
            self._count(n_rows, n_clipped, total)
            self._low[squares.row, squares.col] += squares.data

    def take(self, found: ExactMoments) -> None:
        """Add finished sums."""
        with self._lock:
            self._count(found.n_rows, found.n_clipped, found.total)
            if found.squares.high is None:
                self._make_room(found.n_rows)
                self._low += found.squares.low
                return
            self._carry()
            assert self._high is not None
            self._high += found.squares.high
            self._low += found.squares.low
            self._carry()

    def result(self, *, n_rows: int | None = None, parts: int = 1) -> ExactMoments:
        """Return the sums; they are this object's memory, so nothing may be added any more."""
        count = self.n_rows if n_rows is None else n_rows
        if self.n_rows > self.lattice.word_rows:
            self._carry()
        squares: Any = Words(low=self._low, high=self._high)
        if squares.high is not None and count <= self.lattice.word_rows:
            squares = Words(low=(squares.high << 32) + squares.low)  # so few that they fit
        for word in squares.arrays():
            mirror(word)
        return _frozen(
            n_rows=count,
            lattice=self.lattice,
            total=self._total,
            squares=squares,
            n_clipped=self.n_clipped,
            parts=parts,
        )

    def _count(self, n_rows: int, n_clipped: int, total: NDArray[Any]) -> None:
        self.n_rows += n_rows
        self.n_clipped += n_clipped
        self._total += total.astype(np.int64, copy=False)

    def _make_room(self, n_rows: int) -> None:
        """Carry where the squares of so many rows more might not fit: the low word is below 2⁶³."""
        if self._uncarried + n_rows > self.lattice.word_rows:
            self._carry()
        self._uncarried += n_rows

    def _carry(self) -> None:
        carried = Words(low=self._low, high=self._high).two()
        self._low, self._high, self._uncarried = carried.low, carried.high, 0


class BlockSums:
    """What one thread adds up before it hands it over: products of blocks, exact in float64."""

    def __init__(
        self,
        treatment: RowTreatment,
        n_features: int,
        recheck: Callable[[], None],
        into: ExactSum,
        crew: _Crew | None = None,
        *,
        unit: UnitRows | None = None,
        alone: bool | None = None,
    ) -> None:
        self._unit = unit
        self._crew = _Crew(1) if crew is None else crew
        self._treatment, self._recheck = treatment, recheck
        self._rows = [
            LatticeRows(treatment, n_features, self._look_again, into.lattice) for _ in range(self._crew.size)
        ]
        self._room: Matrix | None = None
        self._into = into
        self._densifies = treatment.densifies()
        self._size = product_rows(n_features, into.lattice)
        self._gram: Matrix | None = None
        alone = shares_blocks(n_features) if alone is None else alone
        self._padded = room_for_squares(n_features) if alone else None
        self._squares = None if self._padded is None else self._padded[:n_features, :n_features]
        self._total = np.zeros(n_features)
        self._n_rows, self._n_clipped = 0, 0

    def go_on(self, recheck: Callable[[], None], into: ExactSum) -> None:
        """Begin with other rows of the same kind, once all that is held was handed over."""
        assert not self._n_rows, "what is held is of other rows"
        self._recheck, self._into = recheck, into

    def is_for(self, treatment: RowTreatment, n_features: int, lattice: RowLattice) -> bool:
        """Return whether these rows are treated so, on this lattice."""
        own = self._treatment, self._total.size, self._into.lattice
        return own[0] is treatment and own[1:] == (n_features, lattice)

    def _look_again(self) -> None:
        self._recheck()

    def add(self, block: Block) -> None:
        """Add the rows of a block."""
        if is_sparse(block) and not self._densifies and _is_thin(block):
            self._add_sparse(block)
            return
        for start in range(0, int(block.shape[0]), self._size):
            part = block[start : start + self._size]
            self._add_dense(part.toarray() if is_sparse(part) else part)

    def hand_over(self) -> None:
        """Hand over what is still held here."""
        if self._n_rows:
            assert self._squares is not None
            # In stripes, so that most of what stands above the diagonal is left alone.
            stripes = [
                (start, 0, self._squares[start : start + PANEL, : start + PANEL])
                for start in range(0, len(self._squares), PANEL)
            ]
            self._into.add(self._n_rows, self._n_clipped, self._total, stripes)
            self._n_rows, self._n_clipped = 0, 0
            assert self._padded is not None
            self._padded[:] = 0.0
            self._total[:] = 0.0

    def _add_dense(self, block: Matrix) -> None:
        count = int(block.shape[0])
        if self._squares is None:
            rows, n_clipped, total = self._integers(block)
            self._into.add(count, n_clipped, total, self._panels(rows), self._crew)
            return
        if self._n_rows + count > self._into.lattice.exact_rows:
            self.hand_over()
        if self._padded is not None and self._unit is None and self._rows[0].squares_take(block):
            n_clipped, total = self._rows[0].add_squares(block, self._padded)
        else:
            rows, n_clipped, total = self._integers(block)
            self._squares += np.matmul(rows.T, rows, out=self._gram_of(rows.shape[1]))
        self._total += total
        self._n_rows += count
        self._n_clipped += n_clipped

    def _gram_of(self, n_rows: int) -> Matrix:
        """Return memory of this object for a product of so many rows."""
        if self._gram is None:
            self._gram = np.empty((n_rows, self._total.size))
        return self._gram

    def _integers(self, block: Matrix) -> tuple[Matrix, int, Vector]:
        """Return the integers of a block, how many rows were clipped, and the sums of its columns."""
        if self._unit is not None:
            features, counts = self._unit.parted(block)
            shares = lattice_shares(counts, self._unit.most)
            sides = shares * (self._into.lattice.side / PARTS)
            rows, n_clipped = self._rows[0].of_dense(features, sides=sides)
            return rows, n_clipped, shares @ rows  # whole numbers below 2⁵³
        if self._crew.size == 1 or not block.flags.c_contiguous:
            return self._rows[0].summed(block)
        if self._room is None or len(self._room) < len(block):
            self._room = np.empty(block.shape)
        rows = self._room[: len(block)]

        def treat(number: int, part: slice) -> tuple[int, Vector]:
            _, n_clipped, total = self._rows[number].summed(block[part], rows[part])
            return n_clipped, total

        found = self._crew.each(len(block), treat)
        return rows, sum(each[0] for each in found), sum(each[1] for each in found)

    def _panels(self, rows: Matrix) -> Iterator[tuple[int, int, Matrix]]:
        """Yield the lower triangle of Σ z zᵀ, made as it is taken."""
        flat = self._gram_of(PANEL).ravel()
        for start in range(0, int(rows.shape[1]), PANEL):
            panel = rows[:, start : start + PANEL]
            size = int(panel.shape[1])
            if start:
                below = flat[: size * start].reshape(size, start)
                yield start, 0, np.matmul(panel.T, rows[:, :start], out=below)
            square = flat[: size * size].reshape(size, size)
            yield start, start, np.matmul(panel.T, panel, out=square)

    def _add_sparse(self, block: SparseBlock) -> None:
        """Add sparse rows, multiplied as 64-bit integers."""
        found, n_clipped = self._rows[0].of_sparse(block)
        n_rows, width = found.shape
        total = np.bincount(found.indices, weights=found.data, minlength=width)
        rows: Any = type(found)((found.data.astype(np.int64), found.indices, found.indptr), shape=found.shape)
        rows.eliminate_zeros()
        self._into.add_sparse(int(n_rows), n_clipped, total, (rows.T @ rows).tocoo())


class Desk(threading.local):
    """What a thread sums rows with, kept for the next source: of many small ones it is half the work."""

    def __init__(self) -> None:
        self._free: BlockSums | None = None

    def take(
        self, treatment: RowTreatment, n_features: int, recheck: Callable[[], None], into: ExactSum
    ) -> BlockSums:
        """Return sums that are not in use; the parameters are those of `BlockSums`."""
        found, self._free = self._free, None
        if found is None or not found.is_for(treatment, n_features, into.lattice):
            return BlockSums(treatment, n_features, recheck, into)
        found.go_on(recheck, into)
        return found

    def put_back(self, sums: BlockSums) -> None:
        """Keep sums that have handed over everything."""
        self._free = sums


def product_rows(n_features: int, lattice: RowLattice) -> int:
    """Return how many rows are multiplied together: some MiB of them, and no more than is exact."""
    size = PRODUCT_BYTES if shares_blocks(n_features) else WIDE_BYTES
    return min(max(gram_rows(n_features), size // (8 * n_features)), lattice.exact_rows)


def exact_moment(
    source: RowSource,
    treatment: RowTreatment,
    *,
    block_rows: int | None = None,
    watch: Watch = UNWATCHED,
    workers: int = 1,
    lattice: RowLattice | None = None,
    desk: Desk | None = None,
) -> ExactMoments:
    """Return the sums over a source's bounded rows from one pass, exact."""
    treatment.check_width(source.n_features)
    lattice = RowLattice() if lattice is None else lattice
    blocks: Iterator[Block]
    squared = _are_squared(source, workers)
    if source.sparse:
        density = 1.0 if treatment.densifies() else source.density or 0.01
        size = block_rows or usual_rows(source.n_features, density=density)
        blocks, recheck = full_blocks(source, size, watch), lambda: None
    else:
        size = block_rows or product_rows(source.n_features, lattice)
        if squared:
            size = min(size, _SQUARED_ROWS)
        blocks, recheck = dense_blocks(source, size, watch)
    total = ExactSum(source.n_features, lattice)
    unit = unit_of(source)
    by_blocks = shares_blocks(source.n_features) or squared
    with _Crew(1 if by_blocks or source.sparse else workers) as crew:
        workers = workers if by_blocks else 1
        if source.n_rows is not None:
            workers = min(workers, -(-source.n_rows // size))
        if desk is not None and workers == crew.size == 1 and unit is None and not squared:
            sums = desk.take(treatment, source.n_features, recheck, total)
            _share_out(blocks, lambda: sums, workers=1)
            desk.put_back(sums)
            return total.result()
        _share_out(
            blocks,
            lambda: BlockSums(treatment, source.n_features, recheck, total, crew, unit=unit, alone=by_blocks),
            workers=workers,
        )
    if unit is not None:
        return total.result(n_rows=unit.n_units, parts=PARTS)
    return total.result()


def _are_squared(source: RowSource, workers: int) -> bool:
    """Return whether the compiled loop squares rows that are too wide for a BLAS on one core."""
    width = source.n_features
    return (
        not shares_blocks(width)
        and width <= _MOST_SQUARED_FEATURES
        and workers * 8 * width**2 <= _SQUARED_BYTES
        and isinstance(source, ArraySource)
        and hasattr(native.loops(), "fedpower_lattice_squares")
    )


def _share_out(blocks: Iterator[Block], worker: Callable[[], BlockSums], *, workers: int) -> None:
    """Let threads take blocks, one at a time, until there is none; the first error ends it."""
    if workers == 1:
        sums = worker()
        while (block := next(blocks, None)) is not None:
            sums.add(block)
            del block  # or two blocks are held while the next one is read
        sums.hand_over()
        return
    reading = threading.Lock()
    failed = threading.Event()

    def run() -> None:
        try:
            sums = worker()
            while True:
                with reading:
                    block = None if failed.is_set() else next(blocks, None)
                if block is None:
                    break
                sums.add(block)
                del block  # or two blocks are held while the next one is read
            if not failed.is_set():
                sums.hand_over()
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rows") as pool:
        for done in [pool.submit(run) for _ in range(workers)]:
            done.result()


def _is_thin(block: SparseBlock) -> bool:
    """Return whether so little is stored that a sparse product is faster."""
    n_rows, width = block.shape
    return bool(block.nnz <= SPARSE_LIMIT * n_rows * width)


def _symmetric(below: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Return a symmetric array of its lower triangle."""
    found = np.empty((width, width), dtype=np.int64)
    rows, columns = np.tril_indices(width)
    found[rows, columns] = found[columns, rows] = below
    return found


def _frozen(
    *,
    n_rows: int,
    lattice: RowLattice,
    total: NDArray[np.int64],
    squares: Words,
    n_clipped: int,
    parts: int = 1,
) -> ExactMoments:
    """Return the sums with read-only arrays."""
    for array in (total, *squares.arrays()):
        array.flags.writeable = False
    return ExactMoments(
        n_rows=n_rows, lattice=lattice, total=total, squares=squares, n_clipped=n_clipped, parts=parts
    )
