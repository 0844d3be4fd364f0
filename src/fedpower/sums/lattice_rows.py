"""Bounded rows as whole numbers, whose sums are exact in any order."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.source import Matrix, SparseBlock, Vector
from fedpower.rows.treatment import RowTreatment, entry_rows, with_data
from fedpower.sums.lattice_loops import LatticeLoops, TreatedRows

BITS = 20
_MOST_BITS = 22
"""Beyond, a block whose products are exact has too few rows to be worth its call."""

_MARGIN = 2.0
"""How far below S a row that is too long is brought: some seven standard deviations of rounding."""

FEW = 8
"""Where fewer than one row in so many is too long, the others are not multiplied anew."""

WIDE = 192
"""From here on a loop of NumPy's for each row costs less than copying one number for every value."""

FOLD = 1024
"""Columns that such loops are fast with: narrower rows that lie behind one another make longer ones."""

SHIFT = 25  # bits of a float64's 52 that a rounded norm does without
# Where the cells of rounded norms begin: no natural number of a small denominator is near to it, so
# rows of norm 1, and rows of few ones, are never in doubt.
OFFSET = np.int64(0x0C3A5E7)
CUT = 29
"""Bits that a factor does without, so that a float32 value times it is exact in float64."""

_WITHIN = np.int64((1 << SHIFT) - 1)  # the bits that tell where in its cell a number is
_SMALLEST, _LARGEST = 1e-280, 1e280  # between them sums of squares keep their digits
_USUAL_BOUND = 1e-100  # rows with smaller squares than the smallest are nothing beside it
_SPLITTABLE = 1e-130  # between it and its inverse squares fall into two numbers without a loss
_FAR = 600  # rows outside are multiplied by 2^±600 first, which moves no digit that counts


@dataclass(frozen=True, slots=True)
class RowLattice:
    """The whole numbers that rows are rounded to."""

    bits: int = BITS

    def __post_init__(self) -> None:
        if not 8 <= self.bits <= _MOST_BITS:
            raise InputError(
                f"bits of a row lattice must be from 8 to {_MOST_BITS}, got {self.bits}; use {BITS}"
            )

    @property
    def side(self) -> int:
        """S: no row is longer."""
        return 1 << self.bits

    @property
    def exact_rows(self) -> int:
        """Rows whose squares add up to at most 2⁵³, so that float64 holds every partial sum."""
        return 1 << (53 - 2 * self.bits)

    @property
    def word_rows(self) -> int:
        """Rows whose squares add up to at most 2⁶², so that one 64-bit word holds the sum."""
        return 1 << (62 - 2 * self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SparseRows:
    """Stored values of rows, and the row of each."""

    data: Vector
    places: NDArray[np.int64]
    n_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return self.data.shape


_Rows: TypeAlias = Matrix | _SparseRows


class LatticeRows:
    """Rows of a block on the lattice; one thread's, because blocks share its memory."""

    def __init__(
        self,
        treatment: RowTreatment,
        n_features: int,
        recheck: Callable[[], None] = lambda: None,
        lattice: RowLattice | None = None,
    ) -> None:
        if not treatment.bounded:
            raise InputError(
                "rows must be bounded to be put on a lattice, got a treatment without a bound; give "
                "row_norm or normalize"
            )
        treatment.check_width(n_features)
        self.lattice = RowLattice() if lattice is None else lattice
        self._rule = treatment
        self._recheck = recheck
        self._gain = None if treatment.scale is None else 1.0 / treatment.scale
        self._slack = (n_features + 8) * 2.0**-52
        # The same in steps of a float64's last bit, of which a relative 2⁻⁵² is one or two.
        self._reach = np.int64(2 * (n_features + 8) + 2)
        self._side = float(self.lattice.side)
        self._target = self._side - _MARGIN
        self._bound = 1.0 if treatment.row_norm is None else treatment.row_norm
        self._factor = float(cut(np.array([self._side / self._bound]))[0])
        self._limit = (self._bound * (self._target / self._side)) ** 2
        self._longer = (self._bound * (1 + 2.0**-24)) ** 2
        # A row as short as this once it is rounded had a norm below the target before.
        self._surely_short = max(0.0, self._target - 1 - math.sqrt(n_features) / 2) ** 2
        self._expect_long = treatment.normalize
        self._held: dict[tuple[str, bool], Matrix] = {}
        self._loops = LatticeLoops.made(
            treatment,
            n_features,
            self._gain,
            self.numbers(),
            surely_short=self._surely_short,
            cells=(int(self._reach), int(OFFSET), int(_WITHIN)),
        )

    def summed(self, block: NDArray[Any], out: Matrix | None = None) -> tuple[Matrix, int, Vector]:
        """Return what `of_dense` returns, and Σ z over the rows."""
        if self._loops is not None and self._loops.take(block, out):
            return self._in_one_go(self._loops, block, out)
        rows, n_clipped = self._in_passes(block, out)
        return rows, n_clipped, column_sums(rows)

    def of_dense(
        self, block: NDArray[Any], out: Matrix | None = None, sides: Vector | None = None
    ) -> tuple[Matrix, int]:
        """Return the integers of a block's rows, in float64, and how many rows were clipped."""
        if sides is None and self._loops is not None and self._loops.take(block, out):
            return self._in_one_go(self._loops, block, out)[:2]
        return self._in_passes(block, out, sides)

    def _in_one_go(
        self, loops: LatticeLoops, block: NDArray[Any], out: Matrix | None
    ) -> tuple[Matrix, int, Vector]:
        """Do it by the compiled loops; rows that they hand back are treated as all are without them."""
        if out is None:
            out = self._memory("integers", block, by_column=False)
        done = loops.run(block, out, expect_long=self._expect_long)
        integers, n_clipped = self._handed(block, done)
        if len(integers):
            out[done.handed] = integers
        return out, n_clipped, done.total + column_sums(integers)

    def _handed(self, block: NDArray[Any], done: TreatedRows) -> tuple[Matrix, int]:
        """Return the integers of the rows that the loops handed back, and how many of all are clipped."""
        expect_long = self._rule.normalize or done.n_long * FEW > len(block)
        integers, n_clipped = np.empty((done.handed.size, block.shape[1])), done.n_clipped
        if done.handed.size:
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                n_clipped += self._scale(self._moved(block[done.handed]), integers)
        self._expect_long = expect_long
        return integers, n_clipped

    def squares_take(self, block: NDArray[Any]) -> bool:
        """Return whether `add_squares` takes such a block."""
        return self._loops is not None and self._loops.squares and self._loops.take(block, None)

    def add_squares(self, block: NDArray[Any], into: Matrix) -> tuple[int, Vector]:
        """Add Σ z zᵀ to the lower triangle of ``into``; return how many rows were clipped, and Σ z."""
        assert self._loops is not None
        done = self._loops.add_squares(block, into, expect_long=self._expect_long)
        integers, n_clipped = self._handed(block, done)
        if len(integers):
            width = block.shape[1]
            into[:width, :width] += integers.T @ integers
        return n_clipped, done.total + column_sums(integers)

    def _in_passes(
        self, block: NDArray[Any], out: Matrix | None, sides: Vector | None = None
    ) -> tuple[Matrix, int]:
        """Do it by NumPy, a pass for each operation."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            rows = self._moved(block)
            out = self._memory("integers", rows) if out is None else out
            if sides is not None:
                return out, self._scale(rows, out, sides)
            if self._expect_long:
                return out, self._scale(rows, out)
            # Most rows are not too long, and the integers alone show it: no norm is needed before.
            np.multiply(rows, self._factor, out=out)
            np.rint(out, out=out)
            squares = _squares(out)
            if squares.max(initial=0.0) <= self._surely_short:  # not where one is NaN
                return out, 0
            doubtful = np.flatnonzero(~(squares <= self._surely_short))
            if doubtful.size * FEW > len(rows):
                return out, self._scale(rows, out)
            part = rows[doubtful]
            integers = np.empty(part.shape)
            n_clipped = self._scale(part, integers)
            self._expect_long = False
            out[doubtful] = integers
            return out, n_clipped

    def of_sparse(self, block: SparseBlock) -> tuple[SparseBlock, int]:
        """Return the same of sparse rows, which stay sparse: 0 is rounded to 0."""
        assert self._rule.center is None, "rows that are centred first are not sparse"
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            data = block.data if self._gain is None else block.data * self._gain[block.indices]
            out = np.empty(data.shape)
            rows = _SparseRows(data=data, places=entry_rows(block), n_rows=int(block.shape[0]))
            n_clipped = self._scale(rows, out)
        return with_data(block, out), n_clipped

    @property
    def normalizes(self) -> bool:
        """Whether every row is brought to norm S."""
        return self._rule.normalize

    @property
    def short_is_zero(self) -> bool:
        """Whether rows with squares below the smallest that keep their digits are rounded to zero."""
        return not self._rule.normalize and self._bound > _USUAL_BOUND

    def numbers(self) -> list[float]:
        """Return what decides a row's factor, for rows that lie elsewhere (`device_exact`)."""
        return [
            *(1 - self._slack, 1 + self._slack, self._limit, self._longer, self._target),
            *(self._factor, _SMALLEST, _LARGEST, self._side**2),
        ]

    def _moved(self, block: NDArray[Any]) -> Matrix:
        """Return the rows in float64, centred and scaled, as they are or in this object's memory."""
        if block.dtype != np.float64:
            room = self._memory("rows", block)
            np.copyto(room, block)
            block = room
        if self._rule.low is not None:
            room = self._memory("rows", block)
            block = np.clip(block, self._rule.low, self._rule.high, out=room)
        if self._rule.center is not None:
            room = self._memory("rows", block)
            block = _by_column(np.subtract, block, self._rule.center, room)
        if self._gain is not None:
            block = _by_column(np.multiply, block, self._gain, self._memory("rows", block))
        return block

    def _memory(self, use: str, block: NDArray[Any], by_column: bool | None = None) -> Matrix:
        """Return memory of this object in the shape and, by default, the order of a block."""
        if by_column is None:
            by_column = bool(block.flags.f_contiguous and not block.flags.c_contiguous)
        held = self._held.get((use, by_column))
        if held is None or held.size < block.size:
            held = self._held[use, by_column] = np.empty(block.size)
        flat = held[: block.size]
        return flat.reshape(block.shape[::-1]).T if by_column else flat.reshape(block.shape)

    def _scale(self, rows: _Rows, out: Matrix, sides: Vector | None = None) -> int:
        """Put the integers of moved rows into ``out`` and return how many rows were clipped."""
        squares = _squares(rows)
        if not squares.max(initial=0.0) <= _LARGEST:  # one that is NaN is the largest
            return self._in_parts(rows, ~(squares <= _LARGEST), out, sides)
        if squares.min(initial=1.0) >= _SMALLEST:
            return self._scale_by(rows, squares, out, sides)
        tiny = squares < _SMALLEST
        # Rows of nothing but zeros are common: they stay where they are. Others are few.
        short = 1.0 if self._rule.normalize else (self._bound / 4) ** 2
        n_clipped = self._scale_by(rows, np.where(tiny, short, squares), out, sides)
        chosen = np.flatnonzero(tiny & _any(rows))
        part, place = _rows_at(rows, chosen)
        if part.shape[0]:
            integers = np.empty(part.shape)
            n_clipped += self._scale_far(part, _FAR, integers, _at(sides, chosen))
            out[place] = integers
        return n_clipped

    def _in_parts(self, rows: _Rows, huge: NDArray[np.bool_], out: Matrix, sides: Vector | None) -> int:
        """Do the same where the squares of some rows overflow, or are not finite at all."""
        n_clipped = 0
        for chosen in (huge, ~huge):
            part, place = _rows_at(rows, np.flatnonzero(chosen))
            integers, own = np.empty(part.shape), _at(sides, chosen)
            if chosen is huge:
                n_clipped += self._scale_far(self._within_range(part), -_FAR, integers, own)
            else:
                n_clipped += self._scale(part, integers, own)
            out[place] = integers
        return n_clipped

    def _scale_far(self, rows: _Rows, far: int, out: Matrix, sides: Vector | None) -> int:
        """Do the same for rows that are multiplied by 2^far first, so that their squares can be had."""
        moved = _times(rows, np.array([2.0**far]), np.empty(rows.shape))
        near = _like(rows, moved)
        return self._scale_by(near, _squares(near), out, sides, far)

    def _scale_by(
        self, rows: _Rows, squares: Vector, out: Matrix, sides: Vector | None = None, far: int = 0
    ) -> int:
        """Do the same for rows with these squared norms, which are 2^far times the moved rows."""
        count = squares.size
        if count == 0:
            return 0
        squares = self._rounded(rows, squares)
        if sides is not None:
            return self._scale_each(rows, squares, out, sides, far)
        longest = squares.max()
        if squares.min() == longest:
            squares = squares[:1]  # unit rows, for instance: one factor for all of them
        n_clipped = 0
        if self._rule.normalize:
            factors = cut(self._target / np.sqrt(squares))
        else:
            factors = np.full(1, np.ldexp(self._factor, -far))
            limit, longer = np.ldexp(self._limit, 2 * far), np.ldexp(self._longer, 2 * far)
            alike = count // squares.size
            long = squares > limit if longest > limit else np.zeros(1, dtype=np.bool_)
            if longest > limit:
                n_clipped = alike * int(np.count_nonzero(squares > longer))
                factors = np.where(long, cut(self._target / np.sqrt(squares)), factors)
            self._expect_long = alike * int(np.count_nonzero(long)) * FEW > count
        _times(rows, factors, out)
        np.rint(out, out=out)
        self._shrink(rows, factors, out, np.full(1, self._side))
        return n_clipped

    def _scale_each(self, rows: _Rows, squares: Vector, out: Matrix, sides: Vector, far: int) -> int:
        """Do the same with a side for each row, whose squared norms are rounded already."""
        targets = np.maximum(sides - _MARGIN, 0.0)
        brought = cut(targets / np.sqrt(squares))
        n_clipped = 0
        if self._rule.normalize:
            factors = brought
        else:
            with np.errstate(divide="ignore"):
                limits = (self._bound * (targets / sides)) ** 2
            long = ~(squares <= np.ldexp(limits, 2 * far))
            n_clipped = int(np.count_nonzero(squares > np.ldexp(self._longer, 2 * far)))
            factors = np.where(long, brought, np.ldexp(cut(sides / self._bound), -far))
        _times(rows, factors, out)
        np.rint(out, out=out)
        self._shrink(rows, factors, out, sides)
        return n_clipped

    def _shrink(self, rows: _Rows, factors: Vector, out: Matrix, sides: Vector) -> None:
        """Bring rows whose integers are longer than their side further down, until none is."""
        step = _MARGIN
        squares = _squares(_like(rows, out))
        most = sides * sides
        if np.all(squares <= most):  # not where one is NaN
            return
        while (long := np.flatnonzero(~(squares <= most))).size:
            step *= 2
            part, place = _rows_at(rows, long)
            whole = factors[long] if factors.size > 1 else factors
            own = sides[long] if sides.size > 1 else sides
            smaller = whole * np.maximum(0.0, 1 - step / np.maximum(own, 1.0))
            integers = np.rint(_times(part, smaller, np.empty(part.shape)))
            out[place] = integers
            squares[long] = _squares(_like(part, integers))

    def _rounded(self, rows: _Rows, squares: Vector) -> Vector:
        """Return squared norms rounded up, by less than a relative 2⁻²⁶, whatever their own rounding."""
        bits = squares.view(np.int64)
        within = bits + (OFFSET - self._reach)
        within &= _WITHIN  # how far above its cell's start a number is, and the reach below it
        ends = np.bitwise_or(bits + OFFSET, _WITHIN)
        ends += 1 - OFFSET
        rounded = ends.view(np.float64)
        if within.max() > _WITHIN - 2 * self._reach:
            doubtful = np.flatnonzero(within > _WITHIN - 2 * self._reach)
            above = self._lowest_cells(squares[doubtful]) + 1
            above += _at_least(_lines(rows, doubtful), _cell_start(above))
            rounded[doubtful] = _cell_start(above)
        return np.asarray(rounded)

    def _lowest_cells(self, squares: Vector) -> NDArray[np.int64]:
        """Return the lowest cell in which exact squares of the rows can be."""
        return np.asarray(((squares * (1 - self._slack)).view(np.int64) + OFFSET) >> SHIFT)

    def _within_range(self, rows: _Rows) -> _Rows:
        """Return rows in which a value that left float64 when it was centred or scaled is its largest."""
        values = _values(rows)
        if np.isfinite(values).all():
            return rows
        self._recheck()
        if (self._rule.center is None and self._rule.scale is None) or np.isnan(values).any():
            raise InputError(
                "rows must hold finite numbers, got a missing or infinite value; fill it in or leave "
                "that row out"
            )
        return _like(rows, np.nan_to_num(values))


def cut(factors: Vector) -> Vector:
    """Return factors without the last 29 of their bits: float32 holds what is left, if its range does."""
    return (factors.view(np.int64) & ~np.int64((1 << CUT) - 1)).view(np.float64)


def _at(sides: Vector | None, chosen: NDArray[Any]) -> Vector | None:
    """Return the sides of the chosen rows, where rows have sides of their own."""
    return None if sides is None else sides[chosen]


def _squares(rows: _Rows) -> Vector:
    """Return each row's sum of squares."""
    if isinstance(rows, _SparseRows):
        squares = rows.data * rows.data
        found = np.bincount(rows.places, weights=squares, minlength=rows.n_rows)
        return np.asarray(found, dtype=np.float64)
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def column_sums(rows: Matrix) -> Vector:
    """Return Σ z of integers, at most `RowLattice.exact_rows` rows of them, so that order has no part."""
    count, width = rows.shape
    several = FOLD // width if rows.flags.c_contiguous else 1
    if several < 2 or count < several:
        return np.asarray(np.einsum("ij->j", rows))
    even = count - count % several
    found = np.einsum("ij->j", rows[:even].reshape(-1, several * width))
    return np.asarray(found.reshape(several, width).sum(axis=0) + rows[even:].sum(axis=0))


def _any(rows: _Rows) -> NDArray[np.bool_]:
    """Return which rows have a value that is not 0."""
    if isinstance(rows, _SparseRows):
        return np.bincount(rows.places, weights=rows.data != 0, minlength=rows.n_rows) > 0
    return np.asarray(np.any(rows, axis=1))


def _times(rows: _Rows, factors: Vector, out: Matrix) -> Matrix:
    """Return rows times a factor each, or times the only one, in ``out``."""
    if factors.size == 1:
        np.multiply(_values(rows), factors[0], out=out)
    elif isinstance(rows, _SparseRows):
        np.multiply(rows.data, factors[rows.places], out=out)
    else:
        inner = rows.shape[1] if rows.flags.c_contiguous else rows.shape[0]
        with _loops(inner >= WIDE):
            np.multiply(rows, factors[:, np.newaxis], out=out)
    return out


def _by_column(operation: np.ufunc, rows: Matrix, numbers: Vector, out: Matrix) -> Matrix:
    """Return rows combined with a number for each column, in ``out``."""
    count, width = rows.shape
    several = FOLD // width
    if several < 2 or count < several or not (rows.flags.c_contiguous and out.flags.c_contiguous):
        with _loops(True):
            operation(rows, numbers, out=out)
        return out
    even = count - count % several
    long = (-1, several * width)
    with _loops(True):
        repeated = np.tile(numbers, several)
        operation(rows[:even].reshape(long), repeated, out=out[:even].reshape(long))
        operation(rows[even:], numbers, out=out[even:])
    return out


@contextmanager
def _loops(wanted: bool) -> Iterator[None]:
    """Let NumPy loop over rows instead of filling its buffer with copies of what belongs to each."""
    if not wanted:
        yield
        return
    held = np.setbufsize(16)
    try:
        yield
    finally:
        np.setbufsize(held)


def _values(rows: _Rows) -> Matrix:
    return rows.data if isinstance(rows, _SparseRows) else rows


def _like(rows: _Rows, values: Matrix) -> _Rows:
    """Return other values in the places of these rows."""
    return replace(rows, data=values) if isinstance(rows, _SparseRows) else values


def _rows_at(rows: _Rows, chosen: NDArray[np.intp]) -> tuple[_Rows, NDArray[np.intp]]:
    """Return the chosen rows, and where their values are."""
    if not isinstance(rows, _SparseRows):
        return rows[chosen], chosen
    number = np.full(rows.n_rows, -1, dtype=np.int64)
    number[chosen] = np.arange(chosen.size)
    entries = np.flatnonzero(number[rows.places] >= 0)
    places = number[rows.places[entries]]
    return _SparseRows(data=rows.data[entries], places=places, n_rows=chosen.size), entries


def _lines(rows: _Rows, places: NDArray[np.intp]) -> Matrix:
    """Return the values of some rows, filled up with zeros."""
    if not isinstance(rows, _SparseRows):
        return rows[places]
    found = [rows.data[rows.places == place] for place in places]
    lines = np.zeros((len(found), max(each.size for each in found)))
    for line, each in zip(lines, found, strict=True):
        line[: each.size] = each
    return lines


def _cell_start(cell: Any) -> Any:
    """Return the smallest number of a cell of rounded squares."""
    return ((cell << SHIFT) - OFFSET).view(np.float64)


def _at_least(rows: Matrix, boundaries: Vector) -> NDArray[np.bool_]:
    """Return for each row of finite numbers whether its exact sum of squares is at least a boundary."""
    sizes = np.abs(rows[rows != 0])
    if sizes.size and (sizes.min() < _SPLITTABLE or sizes.max() > 1 / _SPLITTABLE):
        return np.array(
            [_exact_square(row) >= Fraction(float(end)) for row, end in zip(rows, boundaries, strict=True)]
        )
    upper = rows * 134217729.0  # 2²⁷ + 1
    upper -= upper - rows
    lower = rows - upper
    high = rows * rows
    low = ((upper * upper - high) + 2 * upper * lower) + lower * lower
    while high.shape[1] > 1:
        if high.shape[1] % 2:
            high, low = np.pad(high, ((0, 0), (0, 1))), np.pad(low, ((0, 0), (0, 1)))
        one, two = high[:, ::2], high[:, 1::2]
        high = one + two
        other = high - one
        low = low[:, ::2] + low[:, 1::2] + ((one - (high - other)) + (two - other))
    beyond = (high[:, 0] - boundaries) + low[:, 0]
    open_ = np.flatnonzero(np.abs(beyond) <= boundaries * 2.0**-80)
    found = beyond >= 0
    for place in open_:
        found[place] = _exact_square(rows[place]) >= Fraction(float(boundaries[place]))
    return np.asarray(found)


def _exact_square(row: Vector) -> Fraction:
    """Return the sum of squares of finite numbers, exactly."""
    row = row[row != 0]
    if row.size == 0:
        return Fraction(0)
    digits, powers = np.frexp(row)
    least = int(powers.min())
    whole = np.ldexp(digits, 53).astype(np.int64).tolist()
    shifts = (2 * (powers - least)).tolist()
    total = sum(each * each << shift for each, shift in zip(whole, shifts, strict=True))
    return Fraction(total) * Fraction(2) ** (2 * (least - 53))
