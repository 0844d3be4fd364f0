"""Products over dense rows and their sums, with one block and one copy of it in memory."""

import numpy as np
import scipy.linalg.blas

from fedpower.rows.source import Matrix, RowSource, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.blocks import dense_blocks
from fedpower.sums.dense import DenseRows


class SquareSum:
    """Number, mean and squares about it, by column, of blocks of rows so far [CGL83 eq. 2.1]."""

    def __init__(self, n_features: int) -> None:
        self.n_rows, self.n_clipped = 0, 0
        self.mean, self.squares = np.zeros(n_features), np.zeros(n_features)

    def add(self, n_rows: int, mean: Vector, squares: Vector, n_clipped: int) -> None:
        """Merge a block in: its number of rows, their mean, their squares about it, clipped ones."""
        step, total = mean - self.mean, self.n_rows + n_rows
        self.squares += squares + self.n_rows * n_rows / total * step**2
        self.mean += step * (n_rows / total)
        self.n_rows = total
        self.n_clipped += n_clipped

    def divided(self, unit: float) -> "SquareSum":
        """Return the sums of the rows over `unit`."""
        result = SquareSum(self.mean.size)
        result.add(self.n_rows, self.mean / unit, self.squares / (unit * unit), self.n_clipped)
        return result


def dense_product(
    source: RowSource,
    treatment: RowTreatment,
    max_rows: int,
    basis: Matrix,
    shift: Vector | None,
    *,
    watch: Watch = UNWATCHED,
) -> Matrix:
    """Return (1/s) Σ (y − shift)(y − shift)ᵀ basis over the treated rows y, from one read."""
    blocks, recheck = dense_blocks(source, max_rows, watch)
    rows = DenseRows(treatment, source.n_features, recheck)
    total, result = 0, np.zeros(basis.shape[::-1])
    for block in blocks:
        treated, _ = rows.treat(block)
        if shift is not None:
            treated = rows.about(treated, rows.unit * shift)
        total += int(treated.shape[0])
        with np.errstate(over="ignore", invalid="ignore"):
            # (YᵀS)ᵀ and not YᵀS: where rows are wide BLAS is a third faster over Y as it lies.
            _add_product(result, treated @ basis, treated)
        del block, treated  # or two blocks are held while the next one is read
    if not np.isfinite(result).all():
        recheck()
    result /= total * rows.unit * rows.unit
    return np.ascontiguousarray(result.T)


def _add_product(result: Matrix, scores: Matrix, rows: Matrix) -> None:
    """Add scoresᵀ·rows to ``result`` where it lies: of wide rows it is as large as a block of them."""
    if rows.flags.c_contiguous:
        scipy.linalg.blas.dgemm(1.0, rows.T, scores, 1.0, result.T, overwrite_c=1)
    else:
        result += scores.T @ rows


def dense_summary(
    source: RowSource, treatment: RowTreatment, max_rows: int, watch: Watch = UNWATCHED
) -> tuple[SquareSum, Vector]:
    """Return the sums of a source's treated rows less a point near them, and that point."""
    blocks, recheck = dense_blocks(source, max_rows, watch)
    rows = DenseRows(treatment, source.n_features, recheck)
    merged = SquareSum(source.n_features)
    origin = np.zeros(source.n_features)
    for block in blocks:
        treated, clipped = rows.treat(block)
        if merged.n_rows == 0:
            origin = rows.mean(treated)
        moved = rows.about(treated, origin)
        mean = rows.mean(moved)
        moved = rows.about(moved, mean)
        squares = np.einsum("ij,ij->j", moved, moved)
        merged.add(int(moved.shape[0]), mean, squares, clipped)
        del block, treated, moved
    return merged.divided(rows.unit), origin / rows.unit
