"""What is asked of a source's rows: moments, products with a basis, whole numbers; one read for each."""

import functools
from collections.abc import Callable

import numpy as np
import scipy.linalg.blas

from fedpower.errors import InputError
from fedpower.rows.source import Block, Matrix, RowSource, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import exact_weights, unit_of
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.exact_moment import ExactMoments, exact_sum
from fedpower.sums.kernel import block_rows, shares_blocks
from fedpower.sums.moment import (
    Moments,
    public_units,
    require_center,
    room_like,
    scatter_rows,
    scatter_sums,
    sparse_offset,
    treated,
)
from fedpower.sums.reduce import S, full_blocks, reduce

WIDE_BLOCK_BYTES = 16 * 2**20
"""Of a block of wide rows: it and its copy are less than the C library takes anew every time."""

FREE_ORDER_ROWS = 2**17
"""So many rows may be added in any order, as `privacy.budget.longest_sum` counts."""


class ProductSum:
    """Σ w(y − shift)(y − shift)ᵀ basis over treated rows y."""

    def __init__(
        self, treatment: RowTreatment, basis: Matrix, shift: Vector | None, *, most: int = 0
    ) -> None:
        self._treatment, self._basis, self._shift, self._most = treatment, basis, shift, most
        self._total = np.zeros(basis.shape[::-1])
        self.weight = 0.0

    def add(self, block: Block, weights: Vector | None = None) -> None:
        """Add the rows of a block; ``weights`` are the numbers of rows of their persons."""
        rows, _ = treated(self._treatment, block)
        own = None if weights is None else exact_weights(weights, self._most)
        self.weight += float(rows.shape[0]) if own is None else float(own.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            if is_sparse(rows):
                scores = np.asarray(rows @ self._basis)
                if self._shift is not None:
                    scores -= self._shift @ self._basis
                    self._total -= np.outer(scores.sum(axis=0), self._shift)
                self._total += np.asarray(rows.T @ scores).T
                return
            if self._shift is not None:
                rows = np.subtract(rows, self._shift, out=room_like("about", rows))
            scores = rows @ self._basis
            if own is not None:
                scores *= own[:, np.newaxis]
            if shares_blocks(rows.shape[1]) or not rows.flags.c_contiguous:
                self._total += scores.T @ rows
            else:  # where it is: of wide rows it is as large as a block of them
                scipy.linalg.blas.dgemm(1.0, rows.T, scores, 1.0, self._total.T, overwrite_c=1)

    def merge(self, other: "ProductSum") -> None:
        """Add what another sum holds."""
        self.weight += other.weight
        self._total += other._total

    def result(self, n_units: int | None = None) -> Matrix:
        """Return the sum over the number of rows; of persons, as it is public, where these count."""
        return np.ascontiguousarray(self._total.T) / (self.weight if n_units is None else n_units)


class RowSums:
    """Sums over a source's treated rows, one read of the source for each."""

    def __init__(
        self, source: RowSource, treatment: RowTreatment, watch: Watch = UNWATCHED, workers: int = 1
    ) -> None:
        treatment.check_width(source.n_features)
        self.source, self.treatment, self.watch = source, treatment, watch
        self.workers = workers if shares_blocks(source.n_features) else 1
        self._split, self._offset = sparse_offset(source, treatment)
        unit = unit_of(source)
        self._most = 0 if unit is None else unit.most
        self._summary: Moments | None = None

    def total(self, make: Callable[[], S], max_rows: int) -> S:
        """Return a sum over all rows; ``make`` can be sent to other processes."""
        return reduce(self.source, make, max_rows, watch=self.watch, workers=self.workers)

    def moments(self) -> Moments:
        """Return mean and covariance."""
        return self._scatter(full=True)

    def sums(self) -> ExactMoments:
        """Return the sums over the bounded rows in whole numbers."""
        return exact_sum(self.source, self.treatment, self.total)

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the moment about `center` times the basis."""
        width = self.source.n_features
        basis = require_basis(basis, width)
        shift = self._offset
        if center is not None:
            vector = require_center(center, width)
            shift = vector if shift is None else vector + shift
        make = functools.partial(ProductSum, self._split, basis, shift, most=self._most)
        found = self.total(make, self._rows()).result(public_units(self.source))
        if not np.isfinite(found).all():
            for _ in self.source.blocks(block_rows(width)):  # which names a value that is not finite
                pass
        return found

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        return self.summary().trace(center)

    def summary(self) -> Moments:
        """Return number, mean and variances of the rows, from one pass made on first use."""
        if self._summary is None:
            self._summary = self._scatter(full=False)
        return self._summary

    def weighted_rows(self, center: Vector | None = None) -> Matrix:
        """Return rows X with XᵀX/len(X) the moment about `center`: for few rows alone."""
        unit, parts, weight = unit_of(self.source), [], 0.0
        for block in full_blocks(self.source, block_rows(self.source.n_features), self.watch):
            features, counts = (block, None) if unit is None else unit.parted(block)
            found, _ = self.treatment.apply(features)
            rows = np.asarray(found.toarray() if is_sparse(found) else found)
            rows = rows if center is None else rows - require_center(center, rows.shape[1])
            weights = np.ones(len(rows)) if counts is None else exact_weights(counts, self._most)
            parts.append(rows if counts is None else np.sqrt(weights)[:, np.newaxis] * rows)
            weight += float(weights.sum())
        stacked = np.vstack(parts)
        return stacked if unit is None else np.asarray(stacked * np.sqrt(len(stacked) / weight))

    def _scatter(self, *, full: bool) -> Moments:
        size = scatter_rows(self.source, self._split, full=full) if full else self._rows()
        found = self.total(scatter_sums(self.source, self._split, full=full), size)
        return found.result(self._offset, public_units(self.source))

    def _rows(self) -> int:
        source = self.source
        size = scatter_rows(source, self._split, full=False)
        stays = source.sparse and not self._split.densifies()
        if not stays and source.n_rows is not None and source.n_rows <= FREE_ORDER_ROWS:
            # Few rows are summed in any order. Smaller blocks lie in memory that is used again.
            size = max(1, min(size, WIDE_BLOCK_BYTES // (8 * source.n_features)))
        return size


def require_basis(basis: Matrix, n_features: int) -> Matrix:
    """Return the basis as float64, or refuse a shape that does not fit the rows."""
    matrix = np.asarray(basis, dtype=np.float64)
    # A NaN is the largest and the smallest of numbers, here.
    ends = (matrix.max(initial=0.0), matrix.min(initial=0.0))
    if matrix.ndim != 2 or matrix.shape[0] != n_features or not np.isfinite(ends).all():
        raise InputError(
            f"the basis must be a finite {n_features}×r matrix for these rows, got shape "
            f"{matrix.shape}; give one row per column of the treated rows"
        )
    return matrix
