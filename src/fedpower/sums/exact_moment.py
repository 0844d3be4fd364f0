"""The moment, the mean and the trace of bounded rows as whole numbers."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.words import Words
from fedpower.rows.source import Matrix, RowSource, SparseBlock, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import PARTS, lattice_shares, unit_of
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.kernel import SPARSE_LIMIT, gram_rows, shares_blocks
from fedpower.sums.kernel import block_rows as usual_rows
from fedpower.sums.lattice_rows import MOST_SQUARED, LatticeRows, RowLattice
from fedpower.sums.moment import PANEL, mirror, require_center
from fedpower.sums.reduce import reduce, room

PRODUCT_BYTES, WIDE_BYTES = 4 * 2**20, 32 * 2**20
"""Bytes of rows that are multiplied together, a core's own and all cores', within what is exact."""


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

    def times(self, copies: int) -> "ExactMoments":
        """Return the sums over so many copies of every row, fewer than 2³⁰."""
        if copies == 1:
            return self
        squares = self.squares.two()
        assert squares.high is not None
        return frozen_sums(
            n_rows=self.n_rows * copies,
            lattice=self.lattice,
            total=self.total * copies,
            squares=Words(low=squares.low * copies, high=squares.high * copies).two(),
            n_clipped=self.n_clipped * copies,
            parts=self.parts,
        )

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


class LatticeSum:
    """Σ z zᵀ (lower triangle) and Σ z of bounded rows, in 64-bit integers; two words beyond 2²² rows."""

    def __init__(
        self, treatment: RowTreatment, n_features: int, *, lattice: RowLattice | None = None, most: int = 0
    ) -> None:
        self._rows = LatticeRows(treatment, n_features, lattice)
        self.lattice = self._rows.lattice
        self._most = most
        self._size = product_rows(n_features, self.lattice)
        self.n_rows, self.n_clipped = 0, 0
        self._total = np.zeros(n_features, dtype=np.int64)
        self._low = np.zeros((n_features, n_features), dtype=np.int64)
        self._high: NDArray[np.int64] | None = None
        self._uncarried = 0

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a block; ``weights`` are the numbers of rows of their persons."""
        if is_sparse(block) and not self._rows.treatment.densifies() and _is_thin(block):
            self._add_sparse(block)
            return
        for start in range(0, int(block.shape[0]), self._size):
            part = slice(start, start + self._size)
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
        assert other._high is not None
        self._high += other._high
        self._low += other._low
        self.n_rows += other.n_rows

    def result(self, *, n_rows: int | None = None, parts: int = 1) -> ExactMoments:
        """Return the sums; they are this object's memory, so nothing may be added any more."""
        if self._high is not None:
            self._carry()
        for word in (self._low, self._high):
            if word is not None:
                mirror(word)
        return frozen_sums(
            n_rows=self.n_rows if n_rows is None else n_rows,
            lattice=self.lattice,
            total=self._total,
            squares=Words(low=self._low, high=self._high),
            n_clipped=self.n_clipped,
            parts=parts,
        )

    def _add_dense(self, block: Matrix, counts: Vector | None) -> None:
        count, width = block.shape
        self._begin(count)
        if counts is None and width <= MOST_SQUARED and self._rows.squares:
            padded = -(-width // 8) * 8
            squares, total = room("squares", (padded, padded)), np.zeros(padded)
            squares[:] = 0.0
            self.n_clipped += self._rows.add_squares(block, squares, total)
            self._low += squares[:width, :width].astype(np.int64)
            self._total += total[:width].astype(np.int64)
            return
        shares = None if counts is None else lattice_shares(counts, self._most)
        rows, n_clipped = self._rows.of_dense(
            block, room("integers", block.shape), None if shares is None else shares / PARTS
        )
        self.n_clipped += n_clipped
        # Whole numbers below 2⁵³: exact in any order.
        self._total += ((np.ones(count) if shares is None else shares) @ rows).astype(np.int64)
        for start in range(0, width, PANEL):
            stop = min(start + PANEL, width)
            product = np.matmul(
                rows[:, start:stop].T, rows[:, :stop], out=room("product", (stop - start, stop))
            )
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
        if self._uncarried + n_rows > self.lattice.word_rows:
            self._carry()
        self._uncarried += n_rows
        self.n_rows += n_rows

    def _carry(self) -> None:
        carried = Words(low=self._low, high=self._high).two()
        self._low, self._high, self._uncarried = carried.low, carried.high, 0


def product_rows(n_features: int, lattice: RowLattice) -> int:
    """Return how many rows are multiplied together: some MiB of them, and no more than is exact."""
    size = PRODUCT_BYTES if shares_blocks(n_features) else WIDE_BYTES
    return min(max(gram_rows(n_features), size // (8 * n_features)), lattice.exact_rows)


def exact_sum(
    source: RowSource,
    treatment: RowTreatment,
    total: Callable[[Callable[[], LatticeSum], int], LatticeSum],
    *,
    block_rows: int | None = None,
    lattice: RowLattice | None = None,
) -> ExactMoments:
    """Return the sums over a source's bounded rows, added up by ``total``."""
    width, unit = source.n_features, unit_of(source)
    treatment.check_width(width)
    lattice = RowLattice() if lattice is None else lattice
    size = block_rows or product_rows(width, lattice)
    if source.sparse and block_rows is None:
        size = usual_rows(width, density=1.0 if treatment.densifies() else source.density or 0.01)
    most = 0 if unit is None else unit.most
    found = total(functools.partial(LatticeSum, treatment, width, lattice=lattice, most=most), size)
    return found.result() if unit is None else found.result(n_rows=unit.n_units, parts=PARTS)


def exact_moment(
    source: RowSource,
    treatment: RowTreatment,
    *,
    block_rows: int | None = None,
    watch: Watch = UNWATCHED,
    workers: int = 1,
    lattice: RowLattice | None = None,
) -> ExactMoments:
    """Return the sums over a source's bounded rows from one pass, exact."""
    workers = workers if shares_blocks(source.n_features) else 1

    def total(make: Callable[[], LatticeSum], size: int) -> LatticeSum:
        return reduce(source, make, size, watch=watch, workers=workers)

    return exact_sum(source, treatment, total, block_rows=block_rows, lattice=lattice)


def _is_thin(block: SparseBlock) -> bool:
    """Return whether so little is stored that a sparse product is faster."""
    n_rows, width = block.shape
    return bool(block.nnz <= SPARSE_LIMIT * n_rows * width)


def frozen_sums(
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
