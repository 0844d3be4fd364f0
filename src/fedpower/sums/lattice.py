"""Bounded rows as integers z with ‖z‖ ≤ S, and their sums, which are exact in any order.

`LatticeSum` adds squares, `ClippedSum` clipped products Σ y·c(Zᵀy)ᵀ for a public basis Z.
"""

import ctypes
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.exceptions import InputError, ProtocolError
from fedpower.rows.units import PARTS, Weights
from fedpower.rules.treatment import RowTreatment, margin, with_data
from fedpower.sums.moment import Moments, add_squares, bounded, mirror
from fedpower.sums.reduce import SPARSE_LIMIT, NotFiniteError, gram_rows, room, shares_blocks
from fedpower.values import Matrix, SparseBlock, Vector, cached_property, is_sparse

Integers = NDArray[np.int64]

BITS = 20
SIDE = 2**BITS
"""S: no row is longer."""

EXACT_ROWS = 2 ** (53 - 2 * BITS)  # squares of so many rows add up to at most 2⁵³: exact in float64
WORD_ROWS = 2 ** (62 - 2 * BITS)  # and of so many to at most 2⁶²: one 64-bit word holds the sum

_MOST_SQUARED = 256
"""The widest rows that the compiled loop squares in a core's cache; a BLAS multiplies wider ones."""

_PRODUCT_BYTES, WIDE_BYTES = 4 * 2**20, 32 * 2**20
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
        self.arrays = [center, gain]
        if ends is not None:
            with np.errstate(all="ignore"):  # shifting is monotone, so that clipping may come after it
                self.arrays += [np.asarray((end - center) * gain) for end in ends]
        if within is not None:
            both = self.arrays[2:] or [np.full_like(center, end) for end in within]
            self.arrays[2:] = [np.clip(end, *within) for end in both]

    @property
    def columns(self) -> ctypes.Structure:
        """The same for compiled loops, which read eight numbers at a time."""
        return _Columns(*(array.ctypes.data for array in self._padded))

    @cached_property
    def _padded(self) -> list[Vector]:
        return [np.pad(array, (0, -array.size % 8)) for array in self.arrays]

    def of(self, block: NDArray[Any]) -> Matrix:
        """Return the shifted rows, by NumPy."""
        center, gain, *ends = self.arrays
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
        self.shift: Shift | None = None
        if treatment.center is not None or treatment.scale is not None:
            center = np.zeros(n_features) if treatment.center is None else treatment.center
            gain = np.ones(n_features) if treatment.scale is None else 1.0 / treatment.scale
            ends = None if treatment.low is None else (treatment.low, treatment.high)
            self.shift = Shift(center, gain, ends)  # type: ignore[arg-type]
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
        columns = _Columns() if self.shift is None else self.shift.columns
        rule = _Rule(columns, bound, bound * (1 + slack), SIDE * (1 - slack), int(self.treatment.normalize))
        n_clipped = native.call(name, rows, rule, *arguments)
        if n_clipped < 0:
            raise NotFiniteError("rows must hold finite numbers, got other values; fill them in")
        return n_clipped


_NOTHING = np.zeros((), dtype=np.int64)


class Words(NamedTuple):
    """An array of integers of up to 85 bits: ``high``·2³² + ``low``."""

    low: Integers
    high: Integers = _NOTHING

    @classmethod
    def sum_of(cls, arrays: Iterable[Integers]) -> "Words":
        """Return the exact sum of arrays of 64-bit integers."""
        low, high = _NOTHING, _NOTHING
        for array in arrays:
            low, high = low + (array & (2**32 - 1)), high + (array >> 32)
        return cls(low, high)

    def two(self) -> "Words":
        """Return the same numbers in two words with 0 ≤ ``low`` < 2³²."""
        return Words(low=self.low & (2**32 - 1), high=self.high + (self.low >> 32))

    def shifted(self, power: int) -> Integers:
        """Return the numbers times 2^power, rounded, halves up, in one word; noise is made for what fits."""
        if power >= 0:
            return ((self.high << 32) + self.low) << power
        whole, half = self.two(), np.int64(1 << -power >> 1)
        return (whole.high << (32 + power)) + ((whole.low + half) >> -power)

    def map(self, pick: Callable[[Integers], Integers]) -> "Words":
        """Return some of the numbers, picked from either word."""
        return Words(low=pick(self.low), high=pick(self.high) if self.high.ndim else _NOTHING)

    def to_float(self) -> Vector:
        """Return the numbers in float64, each rounded once."""
        return np.asarray(np.ldexp(self.high.astype(np.float64), 32) + self.low)

    def to_ints(self) -> NDArray[np.object_]:
        """Return the numbers as Python's integers, which have no limit."""
        return np.asarray(self.high.astype(object) * 2**32 + self.low.astype(object))


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


class LatticeSum:
    """Σ z zᵀ (lower triangle) and Σ z of bounded rows, in 64-bit integers; two words beyond 2²² rows."""

    def __init__(self, treatment: RowTreatment, n_features: int) -> None:
        self._rows = LatticeRows(treatment, n_features)
        self.n_rows, self.n_clipped, self._uncarried = 0, 0, 0
        self._total = np.zeros(n_features, dtype=np.int64)
        self._squares = Words(low=np.zeros((n_features, n_features), dtype=np.int64))

    def add(self, block: Any, weights: Weights | None = None) -> None:
        count, width = block.shape
        if is_sparse(block):
            if not self._rows.treatment.densifies() and block.nnz <= SPARSE_LIMIT * count * width:
                self._add_sparse(block)
                return
        elif weights is None and width <= _MOST_SQUARED and native.loops() is not None:
            self._begin(count)
            self.n_clipped += self._rows.add_squares(block, self._total, self._squares.low)
            return
        size = product_rows(width)
        for start in range(0, count, size):
            part = slice(start, start + size)
            rows = block[part].toarray() if is_sparse(block) else block[part]
            self._add_dense(rows, None if weights is None else weights[part])

    def merge(self, other: "LatticeSum") -> None:
        self.n_clipped += other.n_clipped
        self._total += other._total
        if other._squares.high.ndim:
            self.n_rows += other.n_rows
            self._carry()
            other._carry()
            self._squares = Words(low=self._squares.low, high=self._squares.high + other._squares.high)
        else:
            self._begin(other.n_rows)
        np.add(self._squares.low, other._squares.low, out=self._squares.low)

    def result(self, *, n_rows: int | None = None, parts: int = 1) -> ExactMoments:
        """Return the sums; they are this object's memory, so nothing may be added any more."""
        for word in (self._squares.low, self._squares.high):
            if word.ndim:
                mirror(word)
        return ExactMoments(
            n_rows=self.n_rows if n_rows is None else n_rows,
            total=self._total,
            squares=self._squares,
            n_clipped=self.n_clipped,
            parts=parts,
        )

    def _add_dense(self, block: Matrix, weights: Weights | None) -> None:
        self._begin(len(block))
        shares = None if weights is None else weights.shares()
        rows, n_clipped = self._rows.of_dense(
            block, room("integers", block.shape), None if shares is None else shares / PARTS
        )
        self.n_clipped += n_clipped
        # Integers below 2⁵³: exact in any order.
        self._total += ((np.ones(len(block)) if shares is None else shares) @ rows).astype(np.int64)
        add_squares(self._squares.low, rows, rows)

    def _add_sparse(self, block: SparseBlock) -> None:
        found, n_clipped = self._rows.of_sparse(block)
        n_rows, width = found.shape
        self._begin(int(n_rows))
        self.n_clipped += n_clipped
        self._total += np.bincount(found.indices, weights=found.data, minlength=width).astype(np.int64)
        rows: Any = type(found)((found.data.astype(np.int64), found.indices, found.indptr), shape=found.shape)
        rows.eliminate_zeros()
        squares = (rows.T @ rows).tocoo()
        self._squares.low[squares.row, squares.col] += squares.data

    def _begin(self, n_rows: int) -> None:
        """Count rows, and carry first where their squares might not fit: the low word is below 2⁶³."""
        if self._uncarried + n_rows > WORD_ROWS:
            self._carry()
        self._uncarried += n_rows
        self.n_rows += n_rows

    def _carry(self) -> None:
        self._squares, self._uncarried = self._squares.two(), 0


def product_rows(n_features: int) -> int:
    """Return how many rows are multiplied together: some MiB of them, and no more than is exact."""
    size = _PRODUCT_BYTES if shares_blocks(n_features) else WIDE_BYTES
    return int(min(max(gram_rows(n_features), size // (8 * n_features)), EXACT_ROWS))


# --- clipped products -------------------------------------------------------------------------------------

BASIS_SIDE = 2**30  # numbers of a basis are multiples of 1/2³⁰: times a row they are exact in float64
CLIP_SIDE = 2**16  # α is this whole number: coordinates are cut to multiples of α/2¹⁶
SLANT = 2.0**-20  # how far from orthonormal a basis may be: ‖ZᵀZ − I‖_F
LEAST_CLIP = 2.0**-8  # a smaller α than any that is of use; `SLANT` is small in comparison

CLIPPED_ROWS = 2**16  # whose products with 2¹⁶ stay below 2⁵³ in float64, added up in any order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClippedQuestion:
    """A public basis, where coordinates are clipped, and what rows are taken about."""

    clip: float
    basis: NDArray[np.int32]
    center: NDArray[np.int32] | None

    @classmethod
    def of(cls, basis: Matrix, clip: float, center: Vector | None = None) -> "ClippedQuestion":
        """Return the question for a basis with orthonormal columns, rounded to its lattice."""
        return cls(
            clip=float(clip),
            basis=np.rint(basis * BASIS_SIDE).astype(np.int32),
            center=None if center is None else np.rint(center * SIDE).astype(np.int32),
        )

    @property
    def real_basis(self) -> Matrix:
        return self.basis / float(BASIS_SIDE)

    def to_bytes(self) -> bytes:
        """Return what silos are sent."""
        center = b"" if self.center is None else self.center.astype("<i4").tobytes()
        return struct.pack("<d", self.clip) + self.basis.astype("<i4").tobytes() + center

    @classmethod
    def from_bytes(cls, public: bytes, *, n_features: int, width: int, center: bool) -> "ClippedQuestion":
        """Return the question in bytes that a coordinator sent; refuse what the noise is not made for."""
        expected = 8 + 4 * n_features * (width + int(center))
        clip = struct.unpack_from("<d", public)[0] if len(public) == expected else math.nan
        if not LEAST_CLIP <= clip <= 1.0:
            raise ProtocolError(
                "a clipped product must have the agreed width, a clip from 2**-8 to 1 and a "
                "centre where the study centres, got another question"
            )
        numbers = np.frombuffer(public, dtype="<i4", offset=8).astype(np.int32)
        basis = numbers[: n_features * width].reshape(n_features, width)
        about = numbers[n_features * width :] if center else None
        made = cls(clip=clip, basis=basis, center=about)
        real = made.real_basis
        if not np.linalg.norm(real.T @ real - np.eye(width)) <= SLANT:
            raise ProtocolError("a basis must have orthonormal columns to 1e-6, got others")
        if about is not None and np.abs(about.astype(np.int64)).max(initial=0) > SIDE:
            raise ProtocolError("a centre must have norm 1 at most, got a longer one; send the mean")
        return made


def clipped_scale(clip: float) -> float:
    """Return what a clipped product of rows of norm 1 is multiplied by in whole numbers."""
    return float(SIDE * CLIP_SIDE) / float(clip)


class ClippedSum:
    """Σ y qᵀ and Σ ⌊κ‖y‖²⌋ of bounded rows times S in whole numbers; Σ z without a question."""

    def __init__(
        self, treatment: RowTreatment, n_features: int, question: ClippedQuestion | None, kappa: int
    ):
        self._rows = LatticeRows(treatment, n_features)
        self._question, self._kappa = question, kappa
        self.total = np.zeros((n_features,) if question is None else question.basis.shape, dtype=np.int64)
        self.n_rows = self.squares = 0

    def add(self, block: Any, weights: Weights | None = None) -> None:
        assert weights is None, "persons have no clipped products"
        block = block.toarray() if is_sparse(block) else block
        rows, _ = self._rows.of_dense(block, room("integers", block.shape))
        self.n_rows += len(rows)
        if self._question is None:
            self.total += rows.sum(axis=0).astype(np.int64)
            return
        about, norms = _about(rows, self._question.center)
        clipped = _clipped(about @ self._question.basis.astype(np.float64), self._question.clip)
        self.total += (about.T @ clipped).astype(np.int64)
        self.squares += int(np.floor(norms * (self._kappa / float(SIDE) ** 2)).astype(np.int64).sum())

    def merge(self, other: "ClippedSum") -> None:
        self.total += other.total
        self.n_rows += other.n_rows
        self.squares += other.squares


def _about(rows: Matrix, center: NDArray[np.int32] | None) -> tuple[Matrix, Vector]:
    """Return whole rows about a whole centre, of norm S at most, and their squared norms; all exact."""
    shifted = rows if center is None else rows - center
    squares = np.asarray(np.einsum("ij,ij->i", shifted, shifted))
    long = np.flatnonzero(squares > float(SIDE) ** 2)
    if long.size:
        factors = (1.0 - 2.0**-40) * SIDE / np.sqrt(squares[long])
        shifted[long] = np.trunc(shifted[long] * factors[:, np.newaxis])
        squares[long] = np.einsum("ij,ij->i", shifted[long], shifted[long])
    return shifted, squares


def _clipped(coordinates: Matrix, clip: float) -> Matrix:
    """Return c(p)·2¹⁶/α cut to whole numbers, from p·S·2³⁰ in whole numbers."""
    unit = float(SIDE) * BASIS_SIDE * clip  # what norm α is in the units of the coordinates
    # Column by column, so that a row's norm is made by the same operations wherever the row stands.
    squares = np.zeros(len(coordinates))
    for column in coordinates.T:
        squares += (column / unit) ** 2
    norms = np.maximum(np.sqrt(squares), 1.0)
    factors = (1.0 - 2.0**-40) * CLIP_SIDE / (unit * norms)
    return np.trunc(coordinates * factors[:, np.newaxis])
