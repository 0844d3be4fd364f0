"""Mean and second moment of treated rows in float64, and products with a basis."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.source import RowSource
from fedpower.rows.units import exact_weights, unit_of
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.kernel import SPARSE_LIMIT, block_rows, gram_rows, shares_blocks
from fedpower.sums.reduce import NotFiniteError, reduce, room
from fedpower.values import Block, Matrix, Vector, is_sparse

PANEL = 512
"""Columns that are multiplied together where d×d arrays are large."""

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


def require_basis(basis: Matrix, n_features: int) -> Matrix:
    """Return the basis as float64, or refuse a shape that does not fit the rows."""
    matrix = np.asarray(basis, dtype=np.float64)
    # Of numbers among which one is NaN, that is the largest and the smallest.
    ends = (matrix.max(initial=0.0), matrix.min(initial=0.0))
    if matrix.ndim != 2 or matrix.shape[0] != n_features or not np.isfinite(ends).all():
        raise InputError(
            f"the basis must be a finite {n_features}×r matrix for these rows, got shape {matrix.shape}"
        )
    return matrix


def bounded(treatment: RowTreatment, block: Block) -> tuple[Block, int]:
    """Return treated rows and how many were clipped; refuse what is not finite."""
    values = block.data if is_sparse(block) else block
    if treatment.bounded or treatment.center is not None or treatment.scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(np.sum(values))
        if suspect and not np.isfinite(values).all():
            raise NotFiniteError("rows must hold finite numbers, got others; fill them in")
    return treatment.apply(block)


class ScatterSum:
    """Weight, mean and Σ w(y − mean)(y − mean)ᵀ of rows; of the columns only unless ``full``."""

    def __init__(self, treatment: RowTreatment, n_features: int, *, full: bool = True, most: int = 0) -> None:
        self._treatment, self._full, self._most = treatment, full, most
        self.n_clipped, self._weight = 0, 0.0
        # The mean is the sum of both, so that rows far from 0 lose no digits.
        self._origin, self._drift = np.zeros(n_features), np.zeros(n_features)
        self._scatter = np.zeros((n_features, n_features) if full else n_features)

    def add(self, block: Block, weights: Vector | None = None) -> None:
        if self._weight and shares_blocks(self._drift.size):
            part = ScatterSum(self._treatment, self._drift.size, full=self._full, most=self._most)
            part.add(block, weights)
            self.merge(part)
            return
        rows, n_clipped = bounded(self._treatment, block)
        self.n_clipped += n_clipped
        own = None if weights is None else exact_weights(weights, self._most)
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
        self._count(other._weight, other._origin, other._drift)

    def result(self, offset: Vector | None = None, n_units: int | None = None) -> Moments:
        """Return the moments of the rows less an offset; they are this object's memory.

        Where persons count, sums are divided by their public number and not by the weights' sum: the same,
        but noise is made for the former.
        """
        count = self._weight if n_units is None else n_units
        origin = self._origin if offset is None else self._origin - offset
        mean, ratio = origin + self._drift, self._weight / count
        self._scatter /= count
        if ratio != 1.0:
            self._rank_one(ratio * (1 - ratio), mean)
            mean *= ratio
        if self._full:
            mirror(self._scatter)
        return Moments(n_rows=round(count), mean=mean, covariance=self._scatter, n_clipped=self.n_clipped)

    def _add_dense(self, rows: Matrix, weights: Vector | None) -> None:
        weight = float(len(rows)) if weights is None else float(weights.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            ones = np.ones(len(rows)) if weights is None else weights
            mean = ones @ rows / weight
            if not np.isfinite(mean).all():
                raise NotFiniteError(
                    "rows must have finite sums, got others; give the columns in other units"
                )
            origin = np.zeros_like(mean)
            if bool(np.any(mean * mean > _FAR**2 * rows[:_PROBE_ROWS].var(axis=0))):
                rows = rows - mean
                origin, mean = mean, ones @ rows / weight
            self._square(rows, rows if weights is None else weights[:, np.newaxis] * rows)
            self._rank_one(-weight, mean)
            self._count(weight, origin, mean)

    def _add_sparse(self, rows: Any) -> None:
        weight = float(rows.shape[0])
        mean = np.asarray(rows.sum(axis=0), dtype=np.float64).ravel() / weight
        if self._full:
            gram = (rows.T @ rows).tocoo()
            self._scatter[gram.row, gram.col] += gram.data
        else:
            self._scatter += np.asarray(rows.multiply(rows).sum(axis=0), dtype=np.float64).ravel()
        self._rank_one(-weight, mean)
        self._count(weight, np.zeros_like(mean), mean)

    def _square(self, rows: Matrix, weighted: Matrix) -> None:
        if not self._full:
            self._scatter += np.einsum("ij,ij->j", rows, weighted)
            return
        for start in range(0, rows.shape[1], PANEL):
            stop = min(start + PANEL, rows.shape[1])
            out = room("product", (stop - start, stop))
            self._scatter[start:stop, :stop] += np.matmul(weighted[:, start:stop].T, rows[:, :stop], out=out)

    def _rank_one(self, weight: float, vector: Vector) -> None:
        if not self._full:
            self._scatter += weight * vector**2
            return
        for start in range(0, vector.size, PANEL):
            stop = min(start + PANEL, vector.size)
            self._scatter[start:stop, :stop] += np.outer(weight * vector[start:stop], vector[:stop])

    def _count(self, weight: float, origin: Vector, drift: Vector) -> None:
        """Count rows whose squares about their own mean were added, and add those of that mean."""
        total = self._weight + weight
        if self._weight:
            step = (origin - self._origin) + (drift - self._drift)
            self._rank_one(self._weight * weight / total, step)
            self._drift += step * (weight / total)
        else:
            self._origin, self._drift = origin, drift.copy()
        self._weight = total


class ProductSum:
    """Σ w(y − shift)(y − shift)ᵀ basis over treated rows y."""

    def __init__(
        self, treatment: RowTreatment, basis: Matrix, shift: Vector | None, *, most: int = 0
    ) -> None:
        self._treatment, self._basis, self._shift, self._most = treatment, basis, shift, most
        self._total = np.zeros(basis.shape[::-1])
        self._weight = 0.0

    def add(self, block: Block, weights: Vector | None = None) -> None:
        rows, _ = bounded(self._treatment, block)
        own = None if weights is None else exact_weights(weights, self._most)
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


def scatter_rows(source: RowSource, treatment: RowTreatment, *, full: bool) -> int:
    """Return how many rows are summed at once."""
    if source.sparse and not treatment.densifies():
        return block_rows(source.n_features, density=source.density or 0.01)
    return gram_rows(source.n_features) if full and not source.sparse else block_rows(source.n_features)


def split_treatment(source: RowSource, treatment: RowTreatment) -> tuple[RowTreatment, Vector | None]:
    """Return the treatment without its centre where that keeps rows sparse, and the centre."""
    return treatment.split() if source.sparse and not treatment.bounded else (treatment, None)


def accumulate_moment(
    source: RowSource, treatment: RowTreatment, *, max_rows: int | None = None, workers: int = 1
) -> Moments:
    """Return the moments of a source's treated rows from one pass."""
    treatment.check_width(source.n_features)
    rule, offset = split_treatment(source, treatment)
    unit = unit_of(source)
    make = functools.partial(ScatterSum, rule, source.n_features, most=0 if unit is None else unit.most)
    size = max_rows or scatter_rows(source, rule, full=True)
    found = reduce(source, make, size, workers=workers if shares_blocks(source.n_features) else 1)
    return found.result(offset, None if unit is None else unit.n_units)


def mirror(matrix: NDArray[Any]) -> None:
    """Copy the lower triangle onto the upper one, a stripe at a time."""
    size = matrix.shape[0]
    for start in range(0, size, PANEL):
        stop = min(start + PANEL, size)
        corner = matrix[start:stop, start:stop]
        np.copyto(corner, np.tril(corner) + np.tril(corner, -1).T)
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
