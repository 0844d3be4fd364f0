"""The second moment of a source's treated rows, from one pass in bounded memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.rows.source import Block, Matrix, RowSource, SparseBlock, Vector, is_sparse
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.blocks import dense_blocks, full_blocks
from fedpower.sums.in_order import in_order
from fedpower.sums.kernel import SPARSE_LIMIT, gram_rows, shares_blocks
from fedpower.sums.kernel import block_rows as usual_rows
from fedpower.sums.scatter import BlockSquares, Part, ScatterSum, mirror


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Mean and moments of s treated rows y."""

    n_rows: int
    origin: Vector
    drift: Vector
    covariance: Matrix
    n_clipped: int

    @property
    def mean(self) -> Vector:
        """The mean of the treated rows."""
        return self.origin + self.drift

    @property
    def spread(self) -> Vector:
        """The standard deviations of the treated rows' columns."""
        return np.sqrt(np.maximum(np.diagonal(self.covariance), 0.0))

    @property
    def moment(self) -> Matrix:
        """The second moment about the origin, (1/s) Σ y yᵀ."""
        return self.about(None)

    def about(self, center: Vector | None = None) -> Matrix:
        """Return (1/s) Σ (y − center)(y − center)ᵀ, by the shift identity."""
        shift = self.shift(center)
        return self.covariance + np.outer(shift, shift)

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the moment about `center` times the basis."""
        shift = self.shift(center)
        return np.asarray(self.covariance @ basis + np.outer(shift, shift @ basis))

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        shift = self.shift(center)
        return float(np.trace(self.covariance) + shift @ shift)

    def diagonal(self, center: Vector | None = None) -> Vector:
        """Return the diagonal of the moment about `center`."""
        return np.asarray(np.diagonal(self.covariance) + self.shift(center) ** 2)

    def shift(self, center: Vector | None) -> Vector:
        """Return the mean less the centre."""
        if center is None:
            return self.mean
        return (self.origin - require_center(center, self.origin.size)) + self.drift


def require_center(center: Vector, n_features: int) -> Vector:
    """Return the centre as a float64 vector of the right length, or refuse it."""
    vector = np.asarray(center, dtype=np.float64)
    if vector.shape != (n_features,) or not np.isfinite(vector).all():
        raise InputError(
            f"center must be {n_features} finite numbers, one per column of the treated rows, got "
            "shape "
            f"{vector.shape}; give the pooled mean"
        )
    return vector


def accumulate_moment(
    source: RowSource,
    treatment: RowTreatment,
    *,
    block_rows: int | None = None,
    watch: Watch = UNWATCHED,
    workers: int = 1,
) -> Moments:
    """Return the moments of a source's treated rows from one pass."""
    treatment.check_width(source.n_features)
    if source.sparse:
        return _of_sparse(source, treatment, block_rows, watch)
    return _of_dense(source, treatment, block_rows or gram_rows(source.n_features), watch, workers)


def _of_dense(
    source: RowSource, treatment: RowTreatment, block_rows: int, watch: Watch, workers: int
) -> Moments:
    if source.n_rows is not None:
        workers = min(workers, max(1, -(-source.n_rows // block_rows) - 1))
    workers = workers if shares_blocks(source.n_features) else 1
    blocks, recheck = dense_blocks(source, block_rows, watch)
    first = next(blocks)
    squares = BlockSquares(treatment, source.n_features, recheck)
    origin = squares.origin_for(first)
    total = ScatterSum(source.n_features)
    total.add(squares.part(first, origin))
    del first

    def worker() -> Callable[[Matrix], Part]:
        own = BlockSquares(treatment, source.n_features, recheck) if workers > 1 else squares
        return lambda block: own.part(block, origin)

    in_order(blocks, worker, total.add, workers=workers)
    unit = squares.rows.unit
    return _frozen(
        n_rows=total.n_rows,
        origin=np.zeros(source.n_features) if origin.point is None else origin.point / unit,
        drift=total.mean / unit,
        covariance=total.covariance(unit),
        n_clipped=total.n_clipped,
    )


def _of_sparse(source: RowSource, treatment: RowTreatment, block_rows: int | None, watch: Watch) -> Moments:
    """Return the moments of sparse rows, which stay sparse unless a bounded row was centred first."""
    offset = None
    if not treatment.bounded:
        treatment, offset = treatment.split()
    if block_rows is None:
        density = 1.0 if treatment.densifies() else source.density or 0.01
        block_rows = usual_rows(source.n_features, density=density)
    total, n_clipped = 0, 0
    origin, drift = np.zeros(source.n_features), np.zeros(source.n_features)
    scatter: Any = np.zeros((source.n_features, source.n_features), order="F")
    for block in full_blocks(source, block_rows, watch):
        treated, clipped = treatment.apply(block)
        if not is_sparse(treated):
            origin = treated.mean(axis=0) if total == 0 else origin
            treated = treated - origin
        count = int(treated.shape[0])
        block_mean = column_mean(treated)
        scatter = _add_scatter(scatter, treated, block_mean)
        step = block_mean - drift
        if total:
            weight = total * count / (total + count)
            scatter += np.outer(weight * step, step).T
        total += count
        n_clipped += clipped
        drift += step * (count / total)
    scatter /= total
    mirror(scatter)
    return _frozen(
        n_rows=total,
        origin=origin if offset is None else -offset,
        drift=drift,
        covariance=scatter,
        n_clipped=n_clipped,
    )


def _frozen(*, n_rows: int, origin: Vector, drift: Vector, covariance: Matrix, n_clipped: int) -> Moments:
    """Return the moments with read-only arrays."""
    for array in (origin, drift, covariance):
        array.flags.writeable = False
    return Moments(n_rows=n_rows, origin=origin, drift=drift, covariance=covariance, n_clipped=n_clipped)


def column_mean(rows: Block) -> Vector:
    """Return the mean of a block's rows."""
    return np.asarray(rows.sum(axis=0), dtype=np.float64).ravel() / int(rows.shape[0])


def _add_scatter(scatter: Any, rows: Block, mean: Vector) -> Any:
    """Return the lower triangle of scatter + Σ (y − mean)(y − mean)ᵀ over the block, in place."""
    if is_sparse(rows):
        size, width = rows.shape
        if rows.nnz <= SPARSE_LIMIT * size * width:
            return _add_sparse(scatter, rows, mean)
        limit = usual_rows(width)
        for start in range(0, size, limit):
            _add_gram(scatter, rows[start : start + limit].toarray() - mean)
        return scatter
    _add_gram(scatter, np.asarray(rows) - mean)
    return scatter


def _add_gram(scatter: Any, centred: Matrix) -> None:
    """Add centredᵀ·centred to ``scatter``, which is in Fortran order."""
    scatter += (centred.T @ centred).T


def _add_sparse(scatter: Any, rows: SparseBlock, mean: Vector) -> Any:
    """Return the same for a sparse block, without densifying it."""
    gram: Any = (rows.T @ rows).tocoo()
    scatter[gram.row, gram.col] += gram.data
    scatter -= np.outer(float(rows.shape[0]) * mean, mean).T
    return scatter
