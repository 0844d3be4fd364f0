"""Dense blocks treated in as few passes over memory as their rows need."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.memory import own_memory
from fedpower.rows.source import Matrix, Stored, Vector
from fedpower.rows.treatment import TINY, RowTreatment, margin, row_norms

_LARGEST_BOUND = 1e100
"""Rows are kept in units of B while B and its inverse are below this: squares stay in range."""

FEW = 8
"""Where fewer than one row in so many is scaled, copying the block and then those is faster."""


class DenseRows:
    """Treated rows of dense blocks, in units of `unit`; one thread's, because blocks share its memory."""

    def __init__(self, treatment: RowTreatment, n_features: int, recheck: Callable[[], None]) -> None:
        self._rule = treatment
        self._recheck = recheck
        bound = 1.0 if treatment.row_norm is None else treatment.row_norm
        self._careful = not 1 / _LARGEST_BOUND < bound < _LARGEST_BOUND
        self._bound = 1.0 if self._careful else bound
        self._margin = margin(n_features)
        self.unit = self._bound * (1 + self._margin) if treatment.bounded else 1.0
        self._plain = treatment.center is None and treatment.scale is None
        self._gain = _inverse(treatment.scale)
        self._room: dict[bool, Matrix] = {}

    def treat(self, block: Matrix) -> tuple[Matrix, int]:
        """Return `unit` times the treated rows and how many were clipped."""
        if self._careful:
            return self._slowly(block)
        rows = block if self._plain else self._moved(block)
        if not self._rule.bounded:
            return (rows, 0) if self._plain or _is_finite(rows) else self._slowly(block)
        norms = row_norms(rows)
        if not np.isfinite(norms).all() or self._has_tiny(rows, norms):
            return self._slowly(block)
        chosen = self._chosen(norms)
        n_clipped = 0
        if not self._rule.normalize and chosen.any():
            n_clipped = int(np.count_nonzero(norms > self.unit))
        return self._scaled(rows, norms, np.flatnonzero(chosen)), n_clipped

    @property
    def moves(self) -> tuple[Vector | None, Vector | None] | None:
        """What is taken off columns and what they are multiplied by then; None where more is done."""
        divides = self._rule.scale is not None and self._gain is None
        if self._careful or self._rule.low is not None or divides:
            return None
        return self._rule.center, self._gain

    def factors(self, norms: Vector) -> Vector | None:
        """Return what rows of these norms, once moved, are multiplied by to be `unit` times treated rows."""
        if not np.isfinite(norms).all() or (self._rule.normalize and bool((norms < TINY).any())):
            return None
        factors = np.ones(len(norms))
        if self._rule.bounded:
            chosen = self._chosen(norms)
            factors[chosen] = self._bound / norms[chosen]
        return factors

    def slowly(self, block: Stored) -> Matrix:
        """Return what `treat` does, of rows that the norms do not tell enough of."""
        return self._slowly(np.asarray(block, dtype=np.float64))[0]

    def mean(self, rows: Matrix) -> Vector:
        """Return the mean of a block's rows, which is finite where every value is."""
        found = np.ones(rows.shape[0]) @ rows / rows.shape[0]
        if not np.isfinite(found).all():
            self._recheck()
        return np.asarray(found)

    def about(self, rows: Matrix, center: Vector) -> Matrix:
        """Return the rows less a centre, in this object's memory."""
        return np.subtract(rows, center, out=self.room(rows))

    def room(self, block: Matrix) -> Matrix:
        """Return memory of this object in the shape and the order of a block."""
        by_column = block.flags.f_contiguous and not block.flags.c_contiguous
        held = self._room.get(by_column)
        if held is None or held.size < block.size or held.shape[1] != block.shape[1]:
            held = own_memory(block.shape[::-1]).T if by_column else own_memory(block.shape)
            self._room[by_column] = held
        if by_column:
            # The first columns of a flat array: contiguous, however few the rows.
            return held.T.ravel()[: block.size].reshape(block.shape[::-1]).T
        return held[: block.shape[0]]

    def _moved(self, block: Matrix) -> Matrix:
        """Return the rows centred and scaled, in this object's memory."""
        rows, room = block, self.room(block)
        with np.errstate(over="ignore", invalid="ignore"):
            if self._rule.low is not None:
                rows = np.clip(rows, self._rule.low, self._rule.high, out=room)
            if self._rule.center is not None:
                rows = np.subtract(rows, self._rule.center, out=room)
            if self._gain is not None:
                rows = np.multiply(rows, self._gain, out=room)
            elif self._rule.scale is not None:
                rows = np.divide(rows, self._rule.scale, out=room)
        return rows

    def _chosen(self, norms: Vector) -> NDArray[np.bool_]:
        """Return which rows are brought to the bound."""
        chosen = norms > self._bound * (1 + self._margin / 2)
        if self._rule.normalize:
            chosen |= (norms < 1 - self._margin / 2) & (norms > 0)
        return np.asarray(chosen)

    def _scaled(self, rows: Matrix, norms: Vector, chosen: NDArray[np.intp]) -> Matrix:
        """Return the rows with the chosen ones brought to the bound."""
        if chosen.size == 0:
            return rows
        room = self.room(rows)
        if chosen.size * FEW < len(rows):
            if self._plain:
                np.copyto(room, rows)
            room[chosen] *= (self._bound / norms[chosen])[:, np.newaxis]
            return room
        factors = np.ones(len(rows))
        factors[chosen] = self._bound / norms[chosen]
        return np.multiply(rows, factors[:, np.newaxis], out=room)

    def _has_tiny(self, rows: Matrix, norms: Vector) -> bool:
        """Return whether a row to be normalised is not zero and too short for its squares."""
        if not self._rule.normalize:
            return False
        short = np.flatnonzero(norms < TINY)
        return bool(short.size) and bool(np.any(rows[short]))

    def _slowly(self, block: Matrix) -> tuple[Matrix, int]:
        """Return the same by `RowTreatment.apply`, which minds every extreme."""
        self._recheck()
        rows, n_clipped = self._rule.apply(block)
        return np.multiply(np.asarray(rows), self.unit, out=self.room(block)), n_clipped


def _inverse(scale: Vector | None) -> Vector | None:
    """Return 1/scale where it is as good as dividing, and faster; None where it would overflow."""
    usual = scale is not None and bool(((scale > 1e-150) & (scale < 1e150)).all())
    return 1.0 / scale if scale is not None and usual else None


def _is_finite(rows: Matrix) -> bool:
    """Return whether the sum of all values is finite: then each of them is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(rows.sum()))
