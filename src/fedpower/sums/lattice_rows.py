"""Bounded rows as whole numbers z with ‖z‖ ≤ S, so that their sums are exact in any order."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.errors import InputError
from fedpower.rows.source import Block, Matrix, SparseBlock, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment, entry_rows, margin, row_norms, with_data
from fedpower.sums.reduce import NotFiniteError, room

BITS = 20
_MOST_BITS = 22
"""Beyond, a block whose products are exact has too few rows to be worth its call."""

_SMALLEST, _LARGEST = 1e-140, 1e140
"""Norms between these have squares that keep their digits."""

MOST_SQUARED = 256
"""The widest rows that the compiled loop squares in a core's cache; a BLAS multiplies wider ones."""

_PANEL_ROWS = 130  # CHUNK and a little more, in native/lattice.c


@dataclass(frozen=True, slots=True)
class RowLattice:
    """The whole numbers that rows are truncated to."""

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

    def target(self, n_features: int) -> float:
        """Return what a row's norm is brought to.

        A computed norm is at least ‖y‖(1 − (d/2 + 2)u), u = 2⁻⁵³; the factor and the products add 3u at
        most; truncation makes nothing longer. So a row brought to S(1 − (d + 8)·2u) has ‖z‖ ≤ S.
        """
        return self.side * (1 - margin(n_features))


class _Rule(ctypes.Structure):
    """`struct rule` of native/lattice.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("low", "high", "center", "gain")),
        *((name, ctypes.c_double) for name in ("bound", "longer", "target")),
        ("normalize", ctypes.c_int32),
    )


class _Rows(ctypes.Structure):
    """`struct rows` of native/lattice.c."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("narrow", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("count", "width", "step")),
        ("sides", ctypes.c_void_p),
    )


class LatticeRows:
    """Rows of blocks as whole numbers: z = trunc(y·t/max(‖y‖, B)), with t a little below S."""

    def __init__(self, treatment: RowTreatment, n_features: int, lattice: RowLattice | None = None) -> None:
        if not treatment.bounded:
            raise InputError(
                "rows must be bounded to be put on a lattice, got a treatment without a bound; give "
                "row_norm or normalize"
            )
        treatment.check_width(n_features)
        self.lattice = RowLattice() if lattice is None else lattice
        self.treatment = treatment
        self._gain = None if treatment.scale is None else 1.0 / treatment.scale
        self._target = self.lattice.target(n_features)
        self._bound = 1.0 if treatment.row_norm is None else treatment.row_norm
        self._longer = self._bound * (1 + margin(n_features))

    def of_dense(
        self, block: NDArray[Any], out: Matrix | None = None, shares: Vector | None = None
    ) -> tuple[Matrix, int]:
        """Return the integers of rows in float64, and how many were clipped; ‖z‖ ≤ S times its share."""
        if out is None:
            out = np.empty(block.shape)
        loops = native.loops()
        if loops is not None:
            return out, self._called(loops.fedpower_lattice_rows, block, shares, out)
        treated, factors, n_clipped = self._scaled(self._moved(block), block, shares)
        with np.errstate(under="ignore"):
            np.multiply(np.asarray(treated), factors[:, np.newaxis], out=out)
        return np.trunc(out, out=out), n_clipped

    def of_sparse(self, block: SparseBlock) -> tuple[SparseBlock, int]:
        """Return the same of sparse rows, which stay sparse: 0 stays 0."""
        assert self.treatment.center is None, "rows that are centred first are not sparse"
        with np.errstate(over="ignore", under="ignore"):
            moved = block if self._gain is None else with_data(block, block.data * self._gain[block.indices])
            treated, factors, n_clipped = self._scaled(moved, block, None)
            assert is_sparse(treated)
            return with_data(treated, np.trunc(treated.data * factors[entry_rows(treated)])), n_clipped

    @property
    def squares(self) -> bool:
        """Whether `add_squares` is there: it is where it is faster than a BLAS."""
        return hasattr(native.loops(), "fedpower_lattice_squares")

    def add_squares(self, block: NDArray[Any], into: Matrix, total: Vector) -> int:
        """Add Σ z zᵀ to the lower triangle of ``into``, padded to eights, and Σ z to ``total``."""
        panels = room("panels", (_PANEL_ROWS * len(into),))
        panels[:] = 0.0
        size = ctypes.c_int64(len(into))
        return self._called(native.loops().fedpower_lattice_squares, block, None, size, panels, total, into)

    def _called(self, function: Any, block: NDArray[Any], shares: Vector | None, *given: Any) -> int:
        """Call a compiled loop and return how many rows were clipped."""
        if block.dtype not in (np.float64, np.float32) or not block.flags.c_contiguous:
            block = np.ascontiguousarray(block, dtype=np.float64)
        count, width = block.shape
        rule, narrow = self.treatment, block.dtype == np.float32
        low, high, center, gain = rule.low, rule.high, rule.center, self._gain
        if narrow or center is not None or gain is not None:
            center = np.zeros(width) if center is None else center
            gain = np.ones(width) if gain is None else gain
        columns = [None if each is None else np.ascontiguousarray(each) for each in (low, high, center, gain)]
        moves = _Rule(
            *(_place(each) for each in columns),
            *(self._bound, self._longer, self._target, int(rule.normalize)),
        )
        rows = _Rows(block.ctypes.data, int(narrow), count, width, width, _place(shares))
        function.restype = ctypes.c_int64
        own = (room("moved", (width,)), *given)
        n_clipped: int = function(
            ctypes.byref(rows),
            ctypes.byref(moves),
            *(ctypes.c_void_p(each.ctypes.data) if isinstance(each, np.ndarray) else each for each in own),
        )
        if n_clipped < 0:
            raise _not_finite()
        return n_clipped

    def _moved(self, block: NDArray[Any]) -> Matrix:
        """Return the rows row by row in float64, clipped, centred and scaled."""
        rule, rows = self.treatment, np.ascontiguousarray(block, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if rule.low is not None:
                rows = np.clip(rows, rule.low, rule.high)
            if rule.center is not None:
                rows = rows - rule.center
            return rows if self._gain is None else rows * self._gain

    def _scaled(self, rows: Block, block: Any, shares: Vector | None) -> tuple[Block, Vector, int]:
        """Return rows, what each is multiplied by, and how many are longer than the bound."""
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            norms = row_norms(rows)
            bounds: Any = self._bound
            longer: Any = self._longer
            extreme = ~(norms <= _LARGEST)
            if self.treatment.normalize:
                extreme |= norms < _SMALLEST
            if extreme.any():  # over their largest value, such rows have squares within float64
                values = rows.data if is_sparse(rows) else rows
                if not np.isfinite(values).all():
                    if not np.isfinite(block.data if is_sparse(block) else block).all():
                        raise _not_finite()
                    values = np.nan_to_num(values)  # what left float64 as it was moved is its largest
                    rows = with_data(rows, values) if is_sparse(rows) else values
                peaks = _peaks(rows)
                peaks[~extreme | (peaks == 0)] = 1.0
                rows = (
                    with_data(rows, rows.data / peaks[entry_rows(rows)])
                    if is_sparse(rows)
                    else np.asarray(rows) / peaks[:, np.newaxis]
                )
                norms, bounds, longer = row_norms(rows), bounds / peaks, longer / peaks
            if self.treatment.normalize:
                n_clipped, lengths = 0, np.where(norms > 0, norms, 1.0)
            else:
                n_clipped, lengths = int(np.count_nonzero(norms > longer)), np.maximum(norms, bounds)
            target = self._target if shares is None else shares * self._target
            return rows, target / lengths, n_clipped


def _place(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


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
