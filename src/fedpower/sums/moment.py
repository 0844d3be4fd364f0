"""Mean and second moment of treated rows in float64, and products with a basis."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError
from fedpower.rows.source import block_rows
from fedpower.rows.units import Weights
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.reduce import SPARSE_LIMIT, NotFiniteError, room, shares_blocks
from fedpower.values import Block, Matrix, Vector, is_sparse

MOST_SQUARE_FEATURES = 8192
"""The widest data whose d×d moment is made, noised, sent and decomposed."""

MOST_FACTOR_BYTES = 2**28
"""Of all silos' moments sent by their factors; a silo holds its own part of it twice."""

_PANEL = 512  # columns that are multiplied together where d×d arrays are large
_PROBE_ROWS = 64  # rows of a block that show how far its columns spread

_FAR = 4.0
"""A mean more than this many standard deviations from 0 is subtracted before squaring. Nearer ones are
subtracted afterwards: no pass over the rows, for a factor 1 + FAR² of accuracy, about four bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Mean and covariance of s treated rows y; the covariance may be only its diagonal."""

    n_rows: int
    mean: Vector
    covariance: Matrix
    n_clipped: int = 0

    def __post_init__(self) -> None:
        self.mean.flags.writeable = self.covariance.flags.writeable = False

    @property
    def spread(self) -> Vector:
        return np.sqrt(self._variances)

    def about(self, center: Vector | None = None) -> Matrix:
        """Return (1/s) Σ (y − center)(y − center)ᵀ, by the shift identity."""
        shift = self._shift(center)
        return self.covariance + np.outer(shift, shift)

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the moment about `center` times the basis."""
        shift = self._shift(center)
        return np.asarray(self.covariance @ basis + np.outer(shift, shift @ basis))

    def trace(self, center: Vector | None = None) -> float:
        return float(self.diagonal(center).sum())

    def diagonal(self, center: Vector | None = None) -> Vector:
        return np.asarray(self._variances + self._shift(center) ** 2)

    @property
    def _variances(self) -> Vector:
        covariance = self.covariance
        return np.maximum(np.diagonal(covariance) if covariance.ndim == 2 else covariance, 0.0)

    def _shift(self, center: Vector | None) -> Vector:
        return self.mean if center is None else self.mean - require_center(center, self.mean.size)


def require_center(center: Vector, n_features: int) -> Vector:
    """Return the centre as a float64 vector of the right length, or refuse it."""
    vector = np.asarray(center, dtype=np.float64)
    if vector.shape != (n_features,) or not np.isfinite(vector).all():
        raise InputError(f"center must be {n_features} finite numbers, got shape {vector.shape}")
    return vector


def bounded(treatment: RowTreatment, block: Block) -> tuple[Block, int]:
    """Return treated rows and how many were clipped; refuse what is not finite."""
    values = block.data if is_sparse(block) else block
    if treatment.bounded or treatment.center is not None or treatment.scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(np.sum(values))
        if suspect and not np.isfinite(values).all():
            raise NotFiniteError("rows must hold finite numbers, got other values; fill them in")
    return treatment.apply(block)


class ScatterSum:
    """Weight, mean and Σ w(y − mean)(y − mean)ᵀ of rows; of the columns only unless ``full``."""

    def __init__(self, treatment: RowTreatment, n_features: int, full: bool = True) -> None:
        self._treatment, self._full = treatment, full
        self.n_clipped, self._weight = 0, 0.0
        self._mean = np.zeros(n_features)
        self._scatter = np.zeros((n_features, n_features) if full else n_features)

    def add(self, block: Block, weights: Weights | None = None) -> None:
        if self._weight and shares_blocks(self._mean.size):  # as if it were merged, to the bit
            part = ScatterSum(self._treatment, self._mean.size, self._full)
            part.add(block, weights)
            self.merge(part)
            return
        rows, n_clipped = bounded(self._treatment, block)
        self.n_clipped += n_clipped
        own = None if weights is None else weights.exact()
        if not is_sparse(rows):
            self._add_dense(rows, own)
        elif rows.nnz <= SPARSE_LIMIT * rows.shape[0] * rows.shape[1]:
            self._add_sparse(rows)
        else:
            limit = block_rows(int(rows.shape[1]))
            for start in range(0, int(rows.shape[0]), limit):
                self._add_dense(rows[start : start + limit].toarray(), None)

    def merge(self, other: "ScatterSum") -> None:
        self.n_clipped += other.n_clipped
        self._scatter += other._scatter
        self._count(other._weight, other._mean)

    def result(self, offset: Vector | None = None, n_units: int | None = None) -> Moments:
        """Return the moments of the rows less an offset; they are this object's memory.

        Where persons count, sums are divided by their public number and not by the weights' sum: the same,
        but noise is made for the former.
        """
        count = self._weight if n_units is None else n_units
        mean, ratio = self._mean if offset is None else self._mean - offset, self._weight / count
        self._scatter /= count
        if ratio != 1.0:
            self._rank_one(ratio * (1 - ratio), mean)
            mean = mean * ratio
        if self._full:
            mirror(self._scatter)
        return Moments(n_rows=round(count), mean=mean, covariance=self._scatter, n_clipped=self.n_clipped)

    def _add_dense(self, rows: Matrix, weights: Vector | None) -> None:
        weight = float(len(rows)) if weights is None else float(weights.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            mean = (np.ones(len(rows)) if weights is None else weights) @ rows / weight
            if not np.isfinite(mean).all():
                raise NotFiniteError("rows must have finite sums, got infinity; use other units")
            if bool(np.any(mean * mean > _FAR**2 * rows[:_PROBE_ROWS].var(axis=0))):
                rows = rows - mean
            else:
                self._rank_one(-weight, mean)
            weighted = rows if weights is None else weights[:, np.newaxis] * rows
            if self._full:
                add_squares(self._scatter, weighted, rows)
            else:
                self._scatter += np.einsum("ij,ij->j", rows, weighted)
            self._count(weight, mean)

    def _add_sparse(self, rows: Any) -> None:
        weight = float(rows.shape[0])
        mean = np.asarray(rows.sum(axis=0), dtype=np.float64).ravel() / weight
        if self._full:
            gram = (rows.T @ rows).tocoo()
            self._scatter[gram.row, gram.col] += gram.data
        else:
            self._scatter += np.asarray(rows.multiply(rows).sum(axis=0), dtype=np.float64).ravel()
        self._rank_one(-weight, mean)
        self._count(weight, mean)

    def _rank_one(self, weight: float, vector: Vector) -> None:
        if self._full:
            add_squares(self._scatter, weight * vector[np.newaxis], vector[np.newaxis])
        else:
            self._scatter += weight * vector**2

    def _count(self, weight: float, mean: Vector) -> None:
        """Count rows whose squares about their own mean were added, and add those of that mean."""
        total = self._weight + weight
        step = mean - self._mean
        if self._weight:
            self._rank_one(self._weight * weight / total, step)
        self._mean = self._mean + step * (weight / total)
        self._weight = total


class ProductSum:
    """Σ w(y − shift)(y − shift)ᵀ basis over treated rows y."""

    def __init__(self, treatment: RowTreatment, basis: Matrix, shift: Vector | None) -> None:
        self._treatment, self._basis, self._shift = treatment, basis, shift
        self._total = np.zeros(basis.shape[::-1])
        self._weight = 0.0

    def add(self, block: Block, weights: Weights | None = None) -> None:
        rows, _ = bounded(self._treatment, block)
        own = None if weights is None else weights.exact()
        self._weight += float(rows.shape[0]) if own is None else float(own.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            if is_sparse(rows):
                scores = np.asarray(rows @ self._basis)
                if self._shift is not None:
                    scores -= self._shift @ self._basis
                    self._total -= np.outer(scores.sum(axis=0), self._shift)
                self._total += np.asarray(rows.T @ scores).T
                return
            if self._shift is not None:
                rows = np.subtract(rows, self._shift, out=room("about", rows.shape))
            scores = rows @ self._basis
            if own is not None:
                scores *= own[:, np.newaxis]
            if shares_blocks(rows.shape[1]) or not rows.flags.c_contiguous:
                self._total += scores.T @ rows
            else:  # where it is: of wide rows it is as large as a block of them
                import scipy.linalg.blas  # noqa: PLC0415 - only for wide rows

                scipy.linalg.blas.dgemm(1.0, rows.T, scores, 1.0, self._total.T, overwrite_c=1)

    def merge(self, other: "ProductSum") -> None:
        self._weight += other._weight
        self._total += other._total

    def result(self, n_units: int | None = None) -> Matrix:
        """Return the sum over the number of rows; of persons, as it is public, where these count."""
        return np.ascontiguousarray(self._total.T) / (self._weight if n_units is None else n_units)


def add_squares(total: NDArray[Any], left: Matrix, right: Matrix) -> None:
    """Add the lower triangle, and more, of leftᵀ·right to a sum, a stripe at a time."""
    for start in range(0, len(total), _PANEL):
        stop = min(start + _PANEL, len(total))
        product = np.matmul(left[:, start:stop].T, right[:, :stop], out=room("product", (stop - start, stop)))
        total[start:stop, :stop] += product.astype(total.dtype, copy=False)


def mirror(matrix: NDArray[Any]) -> None:
    """Copy the lower triangle onto the upper one, a stripe at a time."""
    size = matrix.shape[0]
    for start in range(0, size, _PANEL):
        stop = min(start + _PANEL, size)
        corner = matrix[start:stop, start:stop]
        np.copyto(corner, np.tril(corner) + np.tril(corner, -1).T)
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
