"""Rows of a block put on the lattice by one compiled loop: see `lattice_rows` for what it does."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.rows.source import Matrix, Vector
from fedpower.rows.treatment import RowTreatment

_GROUP = 8
"""Rows that the loop treats together: GROUP in native/lattice.c."""

_EIGHT = 8
"""Columns, in multiples of which squares are summed up."""

_CHUNKS = ((128, 128), (512, 256))
"""Up to a width, the rows whose integers are multiplied while they are in a core's cache."""

_WIDE_CHUNK = 512


class _Rule(ctypes.Structure):
    """`struct rule` of native/lattice.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("low", "high", "center", "gain")),
        *((name, ctypes.c_double) for name in ("factor", "limit", "longer", "target")),
        *((name, ctypes.c_double) for name in ("short_enough", "smallest", "largest", "most")),
        *((name, ctypes.c_int64) for name in ("reach", "offset", "within")),
        *((name, ctypes.c_int32) for name in ("normalize", "expect_long")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreatedRows:
    """What the loop says of a block."""

    total: Vector
    handed: NDArray[np.int64]
    n_long: int
    n_clipped: int


class LatticeLoops:
    """The compiled loop with one treatment of rows; one thread's."""

    def __init__(self, library: Any, rule: _Rule, held: tuple[Vector | None, ...], n_features: int) -> None:
        self._run = library.fedpower_lattice_rows
        self._square = getattr(library, "fedpower_lattice_squares", None)
        self._rule, self._held = rule, held
        self._moved = np.empty((_GROUP, n_features))
        self._panels: Vector | None = None

    @classmethod
    def made(
        cls,
        treatment: RowTreatment,
        n_features: int,
        gain: Vector | None,
        numbers: Sequence[float],
        *,
        surely_short: float,
        cells: tuple[int, int, int],
    ) -> "LatticeLoops | None":
        """Return the loop for a treatment, or None where there is none."""
        library = native.loops()
        if library is None:
            return None
        _, _, limit, longer, target, factor, smallest, largest, most = numbers
        columns = [
            None if each is None else np.ascontiguousarray(each, dtype=np.float64)
            for each in (treatment.low, treatment.high, treatment.center, gain)
        ]
        rule = _Rule(
            *(None if each is None else each.ctypes.data for each in columns),
            *(factor, limit, longer, target, surely_short, smallest, largest, most, *cells),
            *(int(treatment.normalize), 0),
        )
        return cls(library, rule, tuple(columns), n_features)

    def take(self, block: NDArray[Any], out: Matrix | None) -> bool:
        """Return whether the loop takes such a block, and writes to such an array."""
        return (
            block.dtype in (np.float64, np.float32)
            and block.flags.aligned
            and block.strides[1] == block.itemsize
            and block.strides[0] % block.itemsize == 0
            and (out is None or (out.flags.carray and out.dtype == np.float64))
        )

    @property
    def squares(self) -> bool:
        """Whether `add_squares` is there: it is where it is faster than NumPy's product."""
        return self._square is not None

    def run(self, block: NDArray[Any], out: Matrix, *, expect_long: bool) -> TreatedRows:
        """Put the integers of a block's rows into ``out``, zeros for those that are handed back."""
        total = np.zeros(block.shape[1])
        return self._called(self._run, block, [out, total], total, expect_long=expect_long)

    def add_squares(self, block: NDArray[Any], into: Matrix, *, expect_long: bool) -> TreatedRows:
        """Add Σ z zᵀ of a block's rows to the lower triangle of ``into``, but for those handed back."""
        assert self._square is not None
        padded, width = len(into), block.shape[1]
        chunk = next((rows for most, rows in _CHUNKS if width <= most), _WIDE_CHUNK)
        if self._panels is None:
            self._panels = np.zeros((chunk + 2) * padded)
        total = np.zeros(padded)
        sizes = ctypes.c_int64(chunk), ctypes.c_int64(padded)
        return self._called(
            self._square, block, [self._panels, *sizes, total, into], total[:width], expect_long=expect_long
        )

    def _called(
        self, function: Any, block: NDArray[Any], sums: Sequence[Any], total: Vector, *, expect_long: bool
    ) -> TreatedRows:
        """Return what a loop says of a block; ``sums`` are its own arguments, ``total`` among them."""
        count, width = block.shape
        handed = np.empty(count, dtype=np.int64)
        counts = (ctypes.c_int64 * 3)()
        self._rule.expect_long = int(expect_long)
        function(
            ctypes.c_void_p(block.ctypes.data),
            ctypes.c_int32(block.dtype == np.float32),
            *(ctypes.c_int64(each) for each in (count, width, block.strides[0] // block.itemsize)),
            ctypes.byref(self._rule),
            *(
                ctypes.c_void_p(each.ctypes.data) if isinstance(each, np.ndarray) else each
                for each in (self._moved, *sums, handed)
            ),
            counts,
        )
        n_handed, n_long, n_clipped = counts
        return TreatedRows(total=total, handed=handed[:n_handed], n_long=n_long, n_clipped=n_clipped)


def room_for_squares(n_features: int) -> Matrix:
    """Return zeros that `LatticeLoops.add_squares` adds to: the first d rows and columns are meant."""
    padded = -(-n_features // _EIGHT) * _EIGHT
    return np.zeros((padded, padded))
