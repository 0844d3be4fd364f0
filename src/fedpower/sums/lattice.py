"""Bounded rows as integers z with ‖z‖ ≤ S, and their sums, which are exact in any order."""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.errors import InputError
from fedpower.rows.source import Block, Matrix, RowSource, SparseBlock, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment, entry_rows, margin, row_norms, with_data
from fedpower.rows.units import PARTS, lattice_shares, unit_of
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.kernel import SPARSE_LIMIT, block_rows, gram_rows, shares_blocks
from fedpower.sums.moment import PANEL, Moments, mirror
from fedpower.sums.reduce import NotFiniteError, reduce, room

BITS = 20
SIDE = 2**BITS
"""S: no row is longer."""

EXACT_ROWS = 2 ** (53 - 2 * BITS)
"""Rows whose squares add up to at most 2⁵³, so that float64 holds every partial sum."""

WORD_ROWS = 2 ** (62 - 2 * BITS)
"""Rows whose squares add up to at most 2⁶², so that one 64-bit word holds the sum."""

_SMALLEST, _LARGEST = 1e-140, 1e140
"""Norms between these have squares that keep their digits."""

_MOST_SQUARED = 256
"""The widest rows that the compiled loop squares in a core's cache; a BLAS multiplies wider ones."""

_PRODUCT_BYTES, _WIDE_BYTES = 4 * 2**20, 32 * 2**20
"""Bytes of rows that are multiplied together, a core's own and all cores', within what is exact."""


class _Columns(ctypes.Structure):
    """`struct columns` of native/lattice.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("center", "gain", "low", "high"))


class _Rule(ctypes.Structure):
    """`struct rule` of native/lattice.c."""

    _fields_ = (
        ("columns", _Columns),
        *((name, ctypes.c_double) for name in ("bound", "longer", "target")),
        ("normalize", ctypes.c_int64),
    )


class CRows(ctypes.Structure):
    """`struct rows` of native/lattice.c."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "width")),
        ("sides", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, block: Matrix, sides: Vector | None = None) -> "CRows":
        """Return a block, which must be float64 and contiguous by rows and outlive this."""
        return cls(block.ctypes.data, *block.shape, None if sides is None else sides.ctypes.data)


class Moved:
    """What is done to the columns of a row: (x − center)·gain, clipped; a NaN stays one."""

    def __init__(
        self,
        center: Vector,
        gain: Vector,
        ends: tuple[Vector, Vector] | None = None,
        within: tuple[float, float] | None = None,
    ) -> None:
        """Clip to ``ends`` before rows are moved, and to ``within`` afterwards, where given."""
        self._center, self._gain = center, gain
        self._ends: list[Vector] = []
        if ends is not None:
            with np.errstate(all="ignore"):  # moving is monotone, so that clipping may come after it
                self._ends = [np.asarray((end - center) * gain) for end in ends]
        if within is not None:
            least, most = within
            moved = self._ends or [np.full_like(center, least), np.full_like(center, most)]
            self._ends = [np.clip(end, least, most) for end in moved]

    @functools.cached_property
    def columns(self) -> ctypes.Structure:
        """The same for compiled loops, which read eight numbers at a time."""
        padding = (0, -self._center.size % 8)
        self._padded = [np.pad(array, padding) for array in (self._center, self._gain, *self._ends)]
        return _Columns(*(array.ctypes.data for array in self._padded))

    def of(self, block: NDArray[Any]) -> Matrix:
        """Return the moved rows, by NumPy."""
        with np.errstate(all="ignore"):
            rows: Matrix = np.subtract(block, self._center)
            rows *= self._gain
            return np.clip(rows, *self._ends, out=rows) if self._ends else rows


class LatticeRows:
    """Rows of blocks as integers: z = trunc(y·t/max(‖y‖, B)), with t a little below S.

    A computed norm is at least ‖y‖(1 − (d/2 + 2)u), u = 2⁻⁵³; the factor and the products add 3u at most;
    truncation makes nothing longer. So a row brought to t = S(1 − (d + 8)·2u) has ‖z‖ ≤ S.
    """

    def __init__(self, treatment: RowTreatment, n_features: int) -> None:
        if not treatment.bounded:
            raise InputError(
                "rows must be bounded to be put on a lattice, got a treatment without a bound; give "
                "row_norm or normalize"
            )
        treatment.check_width(n_features)
        self.treatment = treatment
        self._moved: Moved | None = None
        if treatment.center is not None or treatment.scale is not None:
            center = np.zeros(n_features) if treatment.center is None else treatment.center
            gain = np.ones(n_features) if treatment.scale is None else 1.0 / treatment.scale
            assert (treatment.low is None) == (treatment.high is None)
            ends = None if treatment.low is None else (treatment.low, treatment.high)
            self._moved = Moved(center, gain, ends)  # type: ignore[arg-type]
        self._target = SIDE * (1 - margin(n_features))
        self._bound = 1.0 if treatment.row_norm is None else treatment.row_norm
        self._longer = self._bound * (1 + margin(n_features))

    def of_dense(
        self, block: NDArray[Any], out: Matrix | None = None, shares: Vector | None = None
    ) -> tuple[Matrix, int]:
        """Return the integers of rows in float64, and how many were clipped; ‖z‖ ≤ S times its share."""
        block = np.ascontiguousarray(block, dtype=np.float64)
        out = np.empty(block.shape) if out is None else out
        if native.loops() is not None:
            moved = room("moved", (3 * (block.shape[1] + 8),))
            return out, self._called("fedpower_lattice_rows", CRows.of(block, shares), moved, out)
        rows = block if self._moved is None else self._moved.of(block)
        treated, factors, n_clipped = self._scaled(rows, block, shares)
        with np.errstate(under="ignore"):
            np.multiply(np.asarray(treated), factors[:, np.newaxis], out=out)
        return np.trunc(out, out=out), n_clipped

    def of_sparse(self, block: SparseBlock) -> tuple[SparseBlock, int]:
        """Return the same of sparse rows, which stay sparse: 0 stays 0."""
        assert self.treatment.center is None, "rows that are centred first are not sparse"
        scale = self.treatment.scale
        with np.errstate(over="ignore", under="ignore"):
            rows = block if scale is None else with_data(block, block.data * (1.0 / scale)[block.indices])
            treated, factors, n_clipped = self._scaled(rows, block, None)
            assert is_sparse(treated)
            return with_data(treated, np.trunc(treated.data * factors[entry_rows(treated)])), n_clipped

    def squares(self, width: int) -> bool:
        """Return whether `add_squares` is there: it is where it is faster than a BLAS."""
        return width <= _MOST_SQUARED and native.loops() is not None

    def add_squares(self, block: NDArray[Any], total: NDArray[np.int64], squares: NDArray[np.int64]) -> int:
        """Add Σ z and the lower triangle of Σ z zᵀ; return how many rows are clipped."""
        block = np.ascontiguousarray(block, dtype=np.float64)
        padded = -(-block.shape[1] // 8) * 8
        scratch = room("squares", ((136 + padded) * padded + 64,))
        return self._called("fedpower_lattice_squares", CRows.of(block), EXACT_ROWS, scratch, total, squares)

    def _called(self, name: str, rows: CRows, *arguments: Any) -> int:
        """Call a compiled loop and return how many rows were clipped."""
        columns = _Columns() if self._moved is None else self._moved.columns
        rule = _Rule(columns, self._bound, self._longer, self._target, int(self.treatment.normalize))
        n_clipped = native.call(name, rows, rule, *arguments)
        if n_clipped < 0:
            raise _not_finite()
        return n_clipped

    def _scaled(self, rows: Block, block: Any, shares: Vector | None) -> tuple[Block, Vector, int]:
        """Return rows, what each is multiplied by, and how many are longer than the bound."""
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            norms = row_norms(rows)
            bounds: Any = self._bound
            longer: Any = self._longer
            extreme = ~(norms <= _LARGEST)
            if self.treatment.normalize:
                extreme |= norms < _SMALLEST
            if extreme.any():  # divided by their largest value, such rows have squares within float64
                if not np.isfinite(_values(rows)).all():
                    if not np.isfinite(_values(block)).all():
                        raise _not_finite()
                    rows = _with_values(rows, np.nan_to_num(_values(rows)))
                peaks = _peaks(rows)
                peaks[~extreme | (peaks == 0)] = 1.0
                per_value = peaks[entry_rows(rows)] if is_sparse(rows) else peaks[:, np.newaxis]
                rows = _with_values(rows, _values(rows) / per_value)
                norms, bounds, longer = row_norms(rows), bounds / peaks, longer / peaks
            if self.treatment.normalize:
                n_clipped, lengths = 0, np.where(norms > 0, norms, 1.0)
            else:
                n_clipped, lengths = int(np.count_nonzero(norms > longer)), np.maximum(norms, bounds)
            target = self._target if shares is None else shares * self._target
            return rows, target / lengths, n_clipped


def _values(rows: Block) -> Vector:
    return rows.data if is_sparse(rows) else np.asarray(rows)


def _with_values(rows: Block, values: Vector) -> Block:
    return with_data(rows, values) if is_sparse(rows) else values


def _peaks(rows: Block) -> Vector:
    """Return each row's largest absolute value."""
    if not is_sparse(rows):
        return np.asarray(np.abs(rows).max(axis=1, initial=0.0))
    peaks = np.zeros(int(rows.shape[0]))
    np.maximum.at(peaks, entry_rows(rows), np.abs(rows.data))
    return peaks


def _not_finite() -> NotFiniteError:
    return NotFiniteError(
        "rows must hold finite numbers, got a missing or infinite value; fill it in or leave that row out"
    )


_LOW_BITS = np.int64(2**32 - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """An array of integers of up to 85 bits: ``low``, or ``high``·2³² + ``low`` with 0 ≤ ``low`` < 2³²."""

    low: NDArray[np.int64]
    high: NDArray[np.int64] | None = None

    def two(self) -> "Words":
        """Return the same numbers in two words, the low one carried."""
        high = np.zeros_like(self.low) if self.high is None else self.high
        return Words(low=self.low & _LOW_BITS, high=high + (self.low >> 32))

    def shifted(self, power: int) -> NDArray[np.int64]:
        """Return the numbers times 2^power, rounded, halves up, in one word; noise is made for what fits."""
        if power >= 0:
            return (self.low if self.high is None else (self.high << 32) + self.low) << power
        whole, half = self.two(), np.int64(1 << -power >> 1)
        assert whole.high is not None
        return (whole.high << (32 + power)) + ((whole.low + half) >> -power)

    def map(self, pick: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> "Words":
        """Return some of the numbers, picked from either word."""
        return Words(low=pick(self.low), high=None if self.high is None else pick(self.high))

    def to_float(self) -> Vector:
        """Return the numbers in float64, each rounded once."""
        if self.high is None:
            return self.low.astype(np.float64)
        return np.asarray(np.ldexp(self.high.astype(np.float64), 32) + self.low)

    def to_ints(self) -> NDArray[np.object_]:
        """Return the numbers as Python's integers, which have no limit."""
        low = self.low.astype(object)
        return low if self.high is None else self.high.astype(object) * 2**32 + low


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactMoments:
    """Sums over s bounded rows z in integers, read-only; ``total`` in units of 1/(S·parts)."""

    n_rows: int
    total: NDArray[np.int64]
    squares: Words
    n_clipped: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        for array in (self.total, self.squares.low, self.squares.high):
            if array is not None:
                array.flags.writeable = False

    @functools.cached_property
    def square_total(self) -> int:
        """Σ ‖z‖², of which one row has at most S²."""
        return int(sum(self.squares.map(np.diagonal).to_ints()))

    def to_float(self, *, full: bool = True) -> Moments:
        """Return mean and covariance of the bounded rows, or variances alone unless ``full``."""
        mean = self.total / (self.n_rows * float(SIDE) * self.parts)
        covariance = (self.squares if full else self.squares.map(np.diagonal)).to_float()
        covariance /= self.n_rows * float(SIDE) ** 2
        covariance -= np.outer(mean, mean) if full else mean**2
        return Moments(n_rows=self.n_rows, mean=mean, covariance=covariance, n_clipped=self.n_clipped)

    def times(self, copies: int) -> "ExactMoments":
        """Return the sums over so many copies of every row, fewer than 2³⁰."""
        squares = self.squares.two()
        assert squares.high is not None
        return replace(
            self,
            n_rows=self.n_rows * copies,
            total=self.total * copies,
            squares=Words(low=squares.low * copies, high=squares.high * copies).two(),
            n_clipped=self.n_clipped * copies,
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ExactMoments)
            and (self.n_rows, self.n_clipped, self.parts) == (other.n_rows, other.n_clipped, other.parts)
            and np.array_equal(self.total, other.total)
            and np.array_equal(self.squares.to_ints(), other.squares.to_ints())
        )

    __hash__ = None  # type: ignore[assignment]


class LatticeSum:
    """Σ z zᵀ (lower triangle) and Σ z of bounded rows, in 64-bit integers; two words beyond 2²² rows."""

    def __init__(self, treatment: RowTreatment, n_features: int, *, most: int = 0) -> None:
        self._rows = LatticeRows(treatment, n_features)
        self._most = most
        self.n_rows, self.n_clipped, self._uncarried = 0, 0, 0
        self._total = np.zeros(n_features, dtype=np.int64)
        self._low = np.zeros((n_features, n_features), dtype=np.int64)
        self._high: NDArray[np.int64] | None = None

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a block; ``weights`` are the numbers of rows of their persons."""
        count, width = block.shape
        if is_sparse(block):
            if not self._rows.treatment.densifies() and block.nnz <= SPARSE_LIMIT * count * width:
                self._add_sparse(block)
                return
        elif weights is None and self._rows.squares(width):
            self._begin(count)
            self.n_clipped += self._rows.add_squares(block, self._total, self._low)
            return
        size = product_rows(width)
        for start in range(0, count, size):
            part = slice(start, start + size)
            rows = block[part].toarray() if is_sparse(block) else block[part]
            self._add_dense(rows, None if weights is None else weights[part])

    def merge(self, other: "LatticeSum") -> None:
        """Add what another sum holds."""
        self.n_clipped += other.n_clipped
        self._total += other._total
        if other._high is None:
            self._begin(other.n_rows)
            self._low += other._low
            return
        self._carry()
        other._carry()
        assert self._high is not None
        self._high += other._high
        self._low += other._low
        self.n_rows += other.n_rows

    def result(self, *, n_rows: int | None = None, parts: int = 1) -> ExactMoments:
        """Return the sums; they are this object's memory, so nothing may be added any more."""
        if self._high is not None:
            self._carry()
            mirror(self._high)
        mirror(self._low)
        return ExactMoments(
            n_rows=self.n_rows if n_rows is None else n_rows,
            total=self._total,
            squares=Words(low=self._low, high=self._high),
            n_clipped=self.n_clipped,
            parts=parts,
        )

    def _add_dense(self, block: Matrix, counts: Vector | None) -> None:
        self._begin(len(block))
        shares = None if counts is None else lattice_shares(counts, self._most)
        rows, n_clipped = self._rows.of_dense(
            block, room("integers", block.shape), None if shares is None else shares / PARTS
        )
        self.n_clipped += n_clipped
        # Integers below 2⁵³: exact in any order.
        self._total += ((np.ones(len(block)) if shares is None else shares) @ rows).astype(np.int64)
        for start in range(0, block.shape[1], PANEL):
            stop = min(start + PANEL, block.shape[1])
            out = room("product", (stop - start, stop))
            product = np.matmul(rows[:, start:stop].T, rows[:, :stop], out=out)
            self._low[start:stop, :stop] += product.astype(np.int64)

    def _add_sparse(self, block: SparseBlock) -> None:
        """Add sparse rows, multiplied as 64-bit integers."""
        found, n_clipped = self._rows.of_sparse(block)
        n_rows, width = found.shape
        self._begin(int(n_rows))
        self.n_clipped += n_clipped
        self._total += np.bincount(found.indices, weights=found.data, minlength=width).astype(np.int64)
        rows: Any = type(found)((found.data.astype(np.int64), found.indices, found.indptr), shape=found.shape)
        rows.eliminate_zeros()
        squares = (rows.T @ rows).tocoo()
        self._low[squares.row, squares.col] += squares.data

    def _begin(self, n_rows: int) -> None:
        """Count rows, and carry first where their squares might not fit: the low word is below 2⁶³."""
        if self._uncarried + n_rows > WORD_ROWS:
            self._carry()
        self._uncarried += n_rows
        self.n_rows += n_rows

    def _carry(self) -> None:
        carried = Words(low=self._low, high=self._high).two()
        self._low, self._high, self._uncarried = carried.low, carried.high, 0


def product_rows(n_features: int) -> int:
    """Return how many rows are multiplied together: some MiB of them, and no more than is exact."""
    size = _PRODUCT_BYTES if shares_blocks(n_features) else _WIDE_BYTES
    return int(min(max(gram_rows(n_features), size // (8 * n_features)), EXACT_ROWS))


def exact_moment(
    source: RowSource,
    treatment: RowTreatment,
    total: Callable[[Callable[[], Any], int], Any] | None = None,
    *,
    kind: Callable[..., Any] = LatticeSum,
    max_rows: int | None = None,
    watch: Watch = UNWATCHED,
    workers: int = 1,
) -> ExactMoments:
    """Return the sums over a source's bounded rows from one pass, of a kind and by ``total`` where given."""
    width, unit = source.n_features, unit_of(source)
    treatment.check_width(width)
    if max_rows is None:
        max_rows = product_rows(width)
        if source.sparse:
            max_rows = block_rows(width, density=1.0 if treatment.densifies() else source.density or 0.01)
    make = functools.partial(kind, treatment, width, most=0 if unit is None else unit.most)
    if total is None:
        workers = workers if shares_blocks(width) else 1
        total = functools.partial(reduce, source, watch=watch, workers=workers)
    persons = {} if unit is None else {"n_rows": unit.n_units, "parts": PARTS}
    found: ExactMoments = total(make, max_rows).result(**persons)
    return found
