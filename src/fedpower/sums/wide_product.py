"""Products over wide rows as they are stored: treated in a core's cache, without a copy of any block."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.linalg.memory import own_memory
from fedpower.rows.columns import require_count, require_finite
from fedpower.rows.source import Matrix, RowSource, Stored, Vector, shared_out, stored_blocks
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.dense import DenseRows

FEWEST_COLUMNS = 8192
"""From so many on: below, the moment itself is made, or a BLAS has all it multiplies in its cache."""

MOST_ROWS = 2**17
"""So many rows may be added one by one, as `privacy.budget.longest_sum` counts."""

_BLOCK_BYTES = 16 * 2**20
"""Of a block as it is stored, of which there is no copy."""

_SHARE = 8192
"""Columns whose part of the scores is summed by itself, so that threads do not matter to the sum."""


class _Wide(ctypes.Structure):
    """What the loops are told of a block: ``struct wide`` in native/wide.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "center", "gain", "shift", "factors")),
        *((name, ctypes.c_int64) for name in ("count", "width", "row_step")),
        ("narrow", ctypes.c_int32),
    )


def wide_product(
    source: RowSource,
    treatment: RowTreatment,
    basis: Matrix,
    shift: Vector | None,
    *,
    watch: Watch = UNWATCHED,
    workers: int = 1,
) -> Matrix | None:
    """Return (1/s) Σ (y − shift)(y − shift)ᵀ basis over the treated rows y; None where others must."""
    loops, width = native.loops(), source.n_features
    known = source.n_rows is not None and source.n_rows <= MOST_ROWS and not source.sparse
    if not known or width < FEWEST_COLUMNS or not hasattr(loops, "fedpower_wide_products"):
        return None
    looked_at: list[tuple[Stored, int]] = []

    def recheck() -> None:
        for block, row in looked_at:
            require_finite(np.asarray(block, np.float64), name=source.name, columns=source.columns, rows=row)

    rows = DenseRows(treatment, width, recheck)
    blocks = stored_blocks(source, _BLOCK_BYTES, workers)
    if rows.moves is None or blocks is None:
        return None
    product = _Product(loops, rows, np.ascontiguousarray(basis), shift, workers)
    total = 0
    for block in blocks:
        watch.saw(len(block))
        looked_at[:] = [(block, total)]
        product.add(block)
        total += len(block)
    require_count(source.name, source.n_rows, total)
    product.result /= total * rows.unit * rows.unit
    return product.result


class _Product:
    """The sum of the products of blocks of rows with a basis."""

    def __init__(
        self, loops: Any, rows: DenseRows, basis: Matrix, shift: Vector | None, workers: int
    ) -> None:
        self._loops, self._rows, self._basis, self._workers = loops, rows, basis, workers
        self._shift = None if shift is None else np.ascontiguousarray(rows.unit * shift)
        self.result: Matrix = own_memory(basis.shape)
        self.result[:] = 0.0

    def add(self, block: Stored) -> None:
        """Add the products of the next block."""
        assert self._rows.moves is not None
        wide = _described(block, *self._rows.moves)
        squares = np.empty(len(block))
        shared_out(
            lambda start, stop: self._run("squares", wide, (start, stop), squares), len(block), self._workers
        )
        factors = self._rows.factors(np.sqrt(squares))
        if factors is None:
            treated = self._rows.slowly(block)
            wide = _described(treated, None, None)
        else:
            wide.factors = factors.ctypes.data
        if self._shift is not None:
            wide.shift = self._shift.ctypes.data
        width, rank = self._basis.shape
        parts = np.empty((-(-width // _SHARE), -(-len(block) // 4) * 4, rank))

        def score(start: int, stop: int) -> None:
            for first in range(start, stop, _SHARE):
                part = parts[first // _SHARE]
                self._run("scores", wide, (first, min(first + _SHARE, stop)), self._basis, part)

        def multiply(start: int, stop: int) -> None:
            self._run("products", wide, (start, stop), scores, self.result)

        shared_out(score, width, self._workers, _SHARE)
        scores = parts.sum(axis=0)
        shared_out(multiply, width, self._workers, _SHARE)

    def _run(self, name: str, wide: _Wide, share: tuple[int, int], *given: Matrix | Vector) -> None:
        """Have a loop go over some rows of a block, or over some columns with what has r of them."""
        run = getattr(self._loops, f"fedpower_wide_{name}")
        run.restype = None
        places = [ctypes.c_void_p(each.ctypes.data) for each in given]
        if len(given) > 1:
            places.insert(1, ctypes.c_int64(self._basis.shape[1]))  # type: ignore[arg-type]
        run(ctypes.byref(wide), *(ctypes.c_int64(each) for each in share), *places)


def _described(block: Stored, center: Vector | None, gain: Vector | None) -> _Wide:
    """Return what the loops are told of a block; whoever asks keeps all of it."""
    assert block.flags.c_contiguous
    count, width = block.shape
    return _Wide(
        rows=block.ctypes.data,
        center=_place(center),
        gain=_place(gain),
        count=count,
        width=width,
        row_step=width,
        narrow=int(block.dtype == np.float32),
    )


def _place(vector: NDArray[np.float64] | None) -> int | None:
    return None if vector is None else vector.ctypes.data
