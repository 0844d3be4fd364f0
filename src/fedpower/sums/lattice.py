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
from fedpower.rows.source import RowSource
from fedpower.rows.units import PARTS, lattice_shares, unit_of
from fedpower.rules.treatment import RowTreatment, margin, with_data
from fedpower.sums.kernel import SPARSE_LIMIT, block_rows, gram_rows, shares_blocks
from fedpower.sums.moment import PANEL, Moments, bounded, mirror
from fedpower.sums.reduce import NotFiniteError, reduce, room
from fedpower.values import Matrix, SparseBlock, Vector, cached_property, is_sparse

Integers = NDArray[np.int64]

BITS = 20
SIDE = 2**BITS
"""S: no row is longer."""

EXACT_ROWS = 2 ** (53 - 2 * BITS)  # squares of so many rows add up to at most 2⁵³: exact in float64
WORD_ROWS = 2 ** (62 - 2 * BITS)  # and of so many to at most 2⁶²: one 64-bit word holds the sum

_MOST_SQUARED = 256
"""The widest rows that the compiled loop squares in a core's cache; a BLAS multiplies wider ones."""

_PRODUCT_BYTES, _WIDE_BYTES = 4 * 2**20, 32 * 2**20
"""Bytes of rows that are multiplied together, a core's own and all cores', within what is exact."""


class _Columns(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("center", "gain", "low", "high"))


class _Rule(ctypes.Structure):
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


class Shift:
    """What is done to the columns of a row: (x − center)·gain, clipped; a NaN stays one."""

    def __init__(
        self,
        center: Vector,
        gain: Vector,
        ends: tuple[Vector, Vector] | None = None,
        within: tuple[float, float] | None = None,
    ) -> None:
        """Clip to ``ends`` before rows are shifted, and to ``within`` afterwards, where given."""
        self._arrays = [center, gain]
        if ends is not None:
            with np.errstate(all="ignore"):  # shifting is monotone, so that clipping may come after it
                self._arrays += [np.asarray((end - center) * gain) for end in ends]
        if within is not None:
            both = self._arrays[2:] or [np.full_like(center, end) for end in within]
            self._arrays[2:] = [np.clip(end, *within) for end in both]

    @property
    def columns(self) -> ctypes.Structure:
        """The same for compiled loops, which read eight numbers at a time."""
        return _Columns(*(array.ctypes.data for array in self._padded))

    @cached_property
    def _padded(self) -> list[Vector]:
        return [np.pad(array, (0, -array.size % 8)) for array in self._arrays]

    def of(self, block: NDArray[Any]) -> Matrix:
        """Return the shifted rows, by NumPy."""
        center, gain, *ends = self._arrays
        with np.errstate(all="ignore"):
            rows: Matrix = np.subtract(block, center)
            rows *= gain
            return np.clip(rows, *ends, out=rows) if ends else rows


class LatticeRows:
    """Rows of blocks as integers: z = trunc(y·t/max(‖y‖, B)), with t a little below S.

    A computed norm is at least ‖y‖(1 − (d/2 + 2)u), u = 2⁻⁵³; the factor and the products add 3u at most;
    truncation makes nothing longer. So a row brought to t = S(1 − (d + 8)·2u) has ‖z‖ ≤ S.
    """

    def __init__(self, treatment: RowTreatment, n_features: int) -> None:
        if not treatment.bounded:
            raise InputError("rows on a lattice must be bounded, got no bound; give row_norm or normalize")
        treatment.check_width(n_features)
        self.treatment = treatment
        self._shift: Shift | None = None
        if treatment.center is not None or treatment.scale is not None:
            center = np.zeros(n_features) if treatment.center is None else treatment.center
            gain = np.ones(n_features) if treatment.scale is None else 1.0 / treatment.scale
            ends = None if treatment.low is None else (treatment.low, treatment.high)
            self._shift = Shift(center, gain, ends)  # type: ignore[arg-type]
        self._slack = margin(n_features)

    def of_dense(
        self, block: NDArray[Any], out: Matrix | None = None, shares: Vector | None = None
    ) -> tuple[Matrix, int]:
        """Return the integers of rows in float64, and how many were clipped; ‖z‖ ≤ S times its share."""
        block = np.ascontiguousarray(block, dtype=np.float64)
        out = np.empty(block.shape) if out is None else out
        if native.loops() is not None:
            spare = room("spare", (3 * (block.shape[1] + 8),))
            return out, self._called("fedpower_lattice_rows", CRows.of(block, shares), spare, out)
        rows, n_clipped = bounded(self.treatment, block)
        np.multiply(np.asarray(rows), SIDE if shares is None else SIDE * shares[:, np.newaxis], out=out)
        return np.trunc(out, out=out), n_clipped

    def of_sparse(self, block: SparseBlock) -> tuple[SparseBlock, int]:
        """Return the same of sparse rows, which stay sparse: 0 stays 0."""
        assert self.treatment.center is None, "rows that are centred first are not sparse"
        rows, n_clipped = bounded(self.treatment, block)
        assert is_sparse(rows)
        return with_data(rows, np.trunc(rows.data * SIDE)), n_clipped

    def add_squares(self, block: NDArray[Any], total: Integers, squares: Integers) -> int:
        """Add Σ z and the lower triangle of Σ z zᵀ by a compiled loop; return how many rows are clipped."""
        block = np.ascontiguousarray(block, dtype=np.float64)
        padded = -(-block.shape[1] // 8) * 8
        scratch = room("squares", ((136 + padded) * padded + 64,))
        return self._called("fedpower_lattice_squares", CRows.of(block), EXACT_ROWS, scratch, total, squares)

    def _called(self, name: str, rows: CRows, *arguments: Any) -> int:
        bound, slack = self.treatment.row_norm or 1.0, self._slack
        columns = _Columns() if self._shift is None else self._shift.columns
        rule = _Rule(columns, bound, bound * (1 + slack), SIDE * (1 - slack), int(self.treatment.normalize))
        n_clipped = native.call(name, rows, rule, *arguments)
        if n_clipped < 0:
            raise NotFiniteError("rows must hold finite numbers, got others; fill them in")
        return n_clipped


_LOW_BITS = np.int64(2**32 - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """An array of integers of up to 85 bits: ``low``, or ``high``·2³² + ``low`` with 0 ≤ ``low`` < 2³²."""

    low: Integers
    high: Integers | None = None

    def two(self) -> "Words":
        """Return the same numbers in two words, the low one carried."""
        high = np.zeros_like(self.low) if self.high is None else self.high
        return Words(low=self.low & _LOW_BITS, high=high + (self.low >> 32))

    def shifted(self, power: int) -> Integers:
        """Return the numbers times 2^power, rounded, halves up, in one word; noise is made for what fits."""
        if power >= 0:
            return (self.low if self.high is None else (self.high << 32) + self.low) << power
        whole, half = self.two(), np.int64(1 << -power >> 1)
        assert whole.high is not None
        return (whole.high << (32 + power)) + ((whole.low + half) >> -power)

    def map(self, pick: Callable[[Integers], Integers]) -> "Words":
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
    total: Integers
    squares: Words
    n_clipped: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        for array in (self.total, self.squares.low, self.squares.high):
            if array is not None:
                array.flags.writeable = False

    @cached_property
    def square_total(self) -> int:
        """Σ ‖z‖², of which one row has at most S²."""
        return int(sum(self.squares.map(np.diagonal).to_ints()))

    def to_float(self, *, full: bool = True) -> Moments:
        """Return mean and covariance of the bounded rows, or only variances unless ``full``."""
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
        self._rows, self._most = LatticeRows(treatment, n_features), most
        self.n_rows, self.n_clipped, self._uncarried = 0, 0, 0
        self._total = np.zeros(n_features, dtype=np.int64)
        self._low = np.zeros((n_features, n_features), dtype=np.int64)
        self._high: Integers | None = None

    def add(self, block: Any, weights: Vector | None = None) -> None:
        count, width = block.shape
        if is_sparse(block):
            if not self._rows.treatment.densifies() and block.nnz <= SPARSE_LIMIT * count * width:
                self._add_sparse(block)
                return
        elif weights is None and width <= _MOST_SQUARED and native.loops() is not None:
            self._begin(count)
            self.n_clipped += self._rows.add_squares(block, self._total, self._low)
            return
        size = product_rows(width)
        for start in range(0, count, size):
            part = slice(start, start + size)
            rows = block[part].toarray() if is_sparse(block) else block[part]
            self._add_dense(rows, None if weights is None else weights[part])

    def merge(self, other: "LatticeSum") -> None:
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
        total = functools.partial(reduce, source, workers=workers if shares_blocks(width) else 1)
    persons = {} if unit is None else {"n_rows": unit.n_units, "parts": PARTS}
    found: ExactMoments = total(make, max_rows).result(**persons)
    return found
