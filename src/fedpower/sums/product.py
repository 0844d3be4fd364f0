"""The moment times a basis straight from the rows, without a d×d array."""

from dataclasses import dataclass

import numpy as np

from fedpower.errors import InputError
from fedpower.rows.source import Block, Matrix, RowSource, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.blocks import full_blocks
from fedpower.sums.dense_product import SquareSum, dense_product, dense_summary
from fedpower.sums.kernel import block_rows
from fedpower.sums.moment import column_mean, require_center
from fedpower.sums.wide_product import wide_product

WIDE_BLOCK_BYTES = 16 * 2**20
"""Of a block of wide rows: it and its copy are less than the C library takes anew every time."""

FREE_ORDER_ROWS = 2**17
"""So many rows may be added in any order, as `privacy.budget.longest_sum` counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSummary:
    """Number, mean (origin + drift), variances by column and number of clipped rows."""

    n_rows: int
    origin: Vector
    drift: Vector
    variances: Vector
    n_clipped: int

    @property
    def mean(self) -> Vector:
        """The mean of the treated rows."""
        return self.origin + self.drift

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        return float(self.diagonal(center).sum())

    def diagonal(self, center: Vector | None = None) -> Vector:
        """Return the diagonal of the moment about `center`."""
        shift = self.mean
        if center is not None:
            shift = (self.origin - require_center(center, self.origin.size)) + self.drift
        return np.asarray(np.maximum(self.variances, 0.0) + shift**2)


class RowProduct:
    """Products with the moment of a source's treated rows, one read of the source for each."""

    def __init__(
        self, source: RowSource, treatment: RowTreatment, watch: Watch = UNWATCHED, workers: int = 1
    ) -> None:
        treatment.check_width(source.n_features)
        self._source = source
        self._treatment = treatment
        self._watch = watch
        self._workers = workers
        self._offset: Vector | None = None
        if source.sparse and not treatment.bounded:
            self._treatment, self._offset = treatment.split()
        stays = source.sparse and not self._treatment.densifies()
        density = source.density or 0.01 if stays else 1.0
        self._rows = block_rows(source.n_features, density=density)
        if not stays and source.n_rows is not None and source.n_rows <= FREE_ORDER_ROWS:
            # Few rows are summed in any order. Smaller blocks lie in memory that is used again.
            self._rows = max(1, min(self._rows, WIDE_BLOCK_BYTES // (8 * source.n_features)))
        self._summary: RowSummary | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows; takes a pass where the source does not know it."""
        known = self._source.n_rows
        return self.summary().n_rows if known is None or self._summary else known

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return (1/s) Σ (y − center)(y − center)ᵀ basis over the treated rows y."""
        basis = require_basis(basis, self._source.n_features)
        shift = self._shift(center)
        if not self._source.sparse:
            found = wide_product(
                self._source, self._treatment, basis, shift, watch=self._watch, workers=self._workers
            )
            if found is not None:
                return found
            return dense_product(self._source, self._treatment, self._rows, basis, shift, watch=self._watch)
        total, result = 0, np.zeros(basis.shape)
        for block in full_blocks(self._source, self._rows, self._watch):
            treated, _ = self._treatment.apply(block)
            total += int(treated.shape[0])
            result += _block_product(treated, basis, shift)
        return result / total

    def mean(self) -> Vector:
        """Return the mean of the treated rows."""
        return self.summary().mean

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        return self.summary().trace(center)

    def summary(self) -> RowSummary:
        """Return number, mean and variance of the rows, from one pass made on first use."""
        if self._summary is None:
            self._summary = self._summarise()
        return self._summary

    def _summarise(self) -> RowSummary:
        if not self._source.sparse:
            merged, origin = dense_summary(self._source, self._treatment, self._rows, self._watch)
        else:
            merged, origin = self._sparse_summary()
        return RowSummary(
            n_rows=merged.n_rows,
            origin=origin,
            drift=merged.mean,
            variances=merged.squares / merged.n_rows,
            n_clipped=merged.n_clipped,
        )

    def _sparse_summary(self) -> tuple[SquareSum, Vector]:
        """Return the sums of sparse rows, and what their mean is about."""
        merged = SquareSum(self._source.n_features)
        origin = np.zeros(self._source.n_features)
        for block in full_blocks(self._source, self._rows, self._watch):
            treated, clipped = self._treatment.apply(block)
            if not is_sparse(treated):
                origin = treated.mean(axis=0) if merged.n_rows == 0 else origin
                treated = treated - origin
            mean = column_mean(treated)
            merged.add(int(treated.shape[0]), mean, _squares_about(treated, mean), clipped)
        return merged, origin if self._offset is None else -self._offset

    def _shift(self, center: Vector | None) -> Vector | None:
        """Return what is subtracted from the rows as `apply` gives them."""
        if center is None:
            return self._offset
        vector = require_center(center, self._source.n_features)
        return vector if self._offset is None else vector + self._offset


def require_basis(basis: Matrix, n_features: int) -> Matrix:
    """Return the basis as float64, or refuse a shape that does not fit the rows."""
    matrix = np.asarray(basis, dtype=np.float64)
    # A NaN is the largest and the smallest of numbers, here.
    ends = (matrix.max(initial=0.0), matrix.min(initial=0.0))
    if matrix.ndim != 2 or matrix.shape[0] != n_features or not np.isfinite(ends).all():
        raise InputError(
            f"the basis must be a finite {n_features}×r matrix for these rows, got shape "
            f"{matrix.shape}; "
            "give one row per column of the treated rows"
        )
    return matrix


def _block_product(rows: Block, basis: Matrix, shift: Vector | None) -> Matrix:
    """Return Σ (y − shift)(y − shift)ᵀ basis over a block."""
    if shift is None:
        return np.asarray(rows.T @ (rows @ basis))
    if is_sparse(rows):
        scores = np.asarray(rows @ basis) - shift @ basis
        return np.asarray(rows.T @ scores) - np.outer(shift, scores.sum(axis=0))
    moved = np.asarray(rows) - shift
    return np.asarray(moved.T @ (moved @ basis))


def _squares_about(rows: Block, mean: Vector) -> Vector:
    """Return Σ (y − mean)² over a block, by column."""
    if is_sparse(rows):
        squares = np.asarray(rows.multiply(rows).sum(axis=0), dtype=np.float64).ravel()
        return np.asarray(squares - int(rows.shape[0]) * mean**2)
    moved = np.asarray(rows) - mean
    return np.asarray(np.einsum("ij,ij->j", moved, moved))
