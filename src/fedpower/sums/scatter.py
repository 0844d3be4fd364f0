"""Sums of squares about the mean, from the blocks of a pass in their order."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedpower.rows.source import Matrix, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.dense import DenseRows
from fedpower.sums.kernel import shares_blocks

PANEL = 512
"""Columns that are multiplied together where d×d arrays are large."""

_MOST_PENDING = 64
"""Rank-one terms that are collected before they are added, as one matrix product."""

_PROBE_ROWS = 64
"""Rows of the first block that say where the rest are about."""

FAR = 4.0
"""A mean more than this many standard deviations from the origin is subtracted before squaring.

Nearer ones are taken out afterwards, at no pass over the rows and the loss of a factor 1 + FAR² of
accuracy, about four bits.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """What one block adds: number of rows, their mean about the origin, Σ yyᵀ, and clipped rows."""

    n_rows: int
    mean: Vector
    squares: Iterable[tuple[int, int, Matrix]]
    centred: bool
    n_clipped: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Origin:
    """Where rows are taken about, and the columns' variance there, both read from the first rows."""

    point: Vector | None
    variance: Vector

    def is_far(self, mean: Vector) -> bool:
        """Return whether a block with this mean loses digits when it is squared about the origin."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.any(mean * mean > FAR**2 * self.variance))


class BlockSquares:
    """Parts of dense blocks; one thread's, because they share its memory."""

    def __init__(self, treatment: RowTreatment, n_features: int, recheck: Callable[[], None]) -> None:
        self.rows = DenseRows(treatment, n_features, recheck)
        self._bounded = treatment.bounded
        self._whole = shares_blocks(n_features)
        self._gram = np.empty((n_features if self._whole else PANEL, n_features))

    def origin_for(self, block: Matrix) -> _Origin:
        """Return where the rows of a source that begins with this block are taken about."""
        rows, _ = self.rows.treat(block[:_PROBE_ROWS])
        with np.errstate(over="ignore", invalid="ignore"):
            mean = self.rows.mean(rows)
            moved = self.rows.about(rows, mean)
            variance = np.einsum("ij,ij->j", moved, moved) / len(rows)
        origin = _Origin(point=None, variance=variance)
        moves = not self._bounded and origin.is_far(mean)
        return replace(origin, point=mean) if moves else origin

    def part(self, block: Matrix, origin: _Origin) -> Part:
        """Return what a block adds; its sums are this object's memory, good until the next call."""
        rows, n_clipped = self.rows.treat(block)
        count = int(rows.shape[0])
        with np.errstate(over="ignore", invalid="ignore"):
            if origin.point is not None:
                rows = self.rows.about(rows, origin.point)
            mean = self.rows.mean(rows)
            centred = origin.is_far(mean)
            if centred:
                rows = self.rows.about(rows, mean)
        squares: Iterable[tuple[int, int, Matrix]]
        squares = [(0, 0, _product(rows, rows, self._gram))] if self._whole else self._panels(rows)
        return Part(n_rows=count, mean=mean, squares=squares, centred=centred, n_clipped=n_clipped)

    def _panels(self, rows: Matrix) -> Iterator[tuple[int, int, Matrix]]:
        """Yield the lower triangle of Σ yyᵀ, made as it is taken."""
        width = int(rows.shape[1])
        flat = self._gram.ravel()
        for start in range(0, width, PANEL):
            panel = rows[:, start : start + PANEL]
            size = int(panel.shape[1])
            if start:
                below = flat[: size * start].reshape(size, start)
                yield start, 0, _product(panel, rows[:, :start], below)
            yield start, start, _product(panel, panel, flat[: size * size].reshape(size, size))


def _product(one: Matrix, two: Matrix, out: Matrix) -> Matrix:
    """Return oneᵀ·two in ``out``; an overflow is told by the trace, which whoever asks for looks at."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.matmul(one.T, two, out=out)


class ScatterSum:
    """Number, mean and Σ (y − mean)(y − mean)ᵀ of the parts so far [CGL83 eq. 2.1]."""

    def __init__(self, n_features: int) -> None:
        self.n_rows, self.n_clipped = 0, 0
        self.mean = np.zeros(n_features)
        self._scatter = np.zeros((n_features, n_features))
        self._weights: list[float] = []
        self._vectors: list[Vector] = []

    def add(self, part: Part) -> None:
        """Merge the next part in; the order of parts is part of the result's bits."""
        for row, column, values in part.squares:
            stop = row + values.shape[0], column + values.shape[1]
            self._scatter[row : stop[0], column : stop[1]] += values
        if not part.centred:
            self._later(-float(part.n_rows), part.mean)
        step = part.mean - self.mean
        total = self.n_rows + part.n_rows
        if self.n_rows:
            self._later(self.n_rows * part.n_rows / total, step)
        self.n_rows = total
        self.n_clipped += part.n_clipped
        self.mean += step * (part.n_rows / total)

    def covariance(self, unit: float) -> Matrix:
        """Return the scatter over the number of rows, exactly symmetric, of rows in units of `unit`."""
        self._settle()
        self._scatter /= self.n_rows * unit * unit
        mirror(self._scatter)
        return self._scatter

    def _later(self, weight: float, vector: Vector) -> None:
        self._weights.append(weight)
        self._vectors.append(vector)
        if len(self._weights) >= _MOST_PENDING:
            self._settle()

    def _settle(self) -> None:
        if self._weights:
            stacked = np.array(self._vectors)
            self._scatter += (stacked.T * self._weights) @ stacked
        self._weights, self._vectors = [], []


def mirror(matrix: Matrix) -> None:
    """Copy the lower triangle onto the upper one, a stripe at a time."""
    size = matrix.shape[0]
    for start in range(0, size, PANEL):
        stop = min(start + PANEL, size)
        corner = matrix[start:stop, start:stop]
        np.copyto(corner, corner.T.copy(), where=_above_diagonal(stop - start))
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T


@functools.lru_cache(maxsize=4)
def _above_diagonal(size: int) -> NDArray[np.bool_]:
    return np.triu(np.ones((size, size), dtype=np.bool_), 1)
