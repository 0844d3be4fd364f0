"""Mean, moment and products of rows that count by persons, in float64."""

from collections.abc import Iterator

import numpy as np

from fedpower.rows.source import Matrix, RowSource, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import exact_weights, unit_of
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.blocks import full_blocks
from fedpower.sums.kernel import block_rows
from fedpower.sums.moment import Moments, require_center
from fedpower.sums.product import RowSummary, require_basis


class UnitProduct:
    """What `RowProduct` and `accumulate_moment` give, each row y having its weight w = min(1, C/m)."""

    def __init__(self, source: RowSource, treatment: RowTreatment, watch: Watch = UNWATCHED) -> None:
        treatment.check_width(source.n_features)
        unit = unit_of(source)
        assert unit is not None, "rows without persons have kernels of their own"
        self._source, self._treatment, self._watch, self._unit = source, treatment, watch, unit
        self._summary: RowSummary | None = None

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return (1/n) Σ w (y − center)(y − center)ᵀ basis."""
        basis = require_basis(basis, self._source.n_features)
        shift = None if center is None else require_center(center, self._source.n_features)
        result = np.zeros(basis.shape)
        for rows, weights, _ in self._blocks():
            moved = rows if shift is None else rows - shift
            result += moved.T @ (weights[:, np.newaxis] * (moved @ basis))
        return result / self._unit.n_units

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        return self.summary().trace(center)

    def summary(self) -> RowSummary:
        """Return number, mean and variance of the rows, from one pass made on first use."""
        if self._summary is None:
            sums = _Sums(self._source.n_features)
            for rows, weights, clipped in self._blocks():
                moved, weighted = sums.add(rows, weights, clipped)
                sums.squares += np.einsum("ij,ij->j", moved, weighted)
            n = self._unit.n_units
            drift = sums.total / n
            self._summary = RowSummary(
                n_rows=n,
                origin=sums.origin,
                drift=drift,
                variances=sums.squares / n - drift**2,
                n_clipped=sums.n_clipped,
            )
        return self._summary

    def moments(self) -> Moments:
        """Return the moments, from one pass."""
        width = self._source.n_features
        sums, scatter = _Sums(width), np.zeros((width, width))
        for rows, weights, clipped in self._blocks():
            moved, weighted = sums.add(rows, weights, clipped)
            scatter += moved.T @ weighted
        n = self._unit.n_units
        drift = sums.total / n
        scatter = (scatter + scatter.T) / (2 * n) - np.outer(drift, drift)
        for array in (sums.origin, drift, scatter):
            array.flags.writeable = False
        return Moments(
            n_rows=n, origin=sums.origin, drift=drift, covariance=scatter, n_clipped=sums.n_clipped
        )

    def weighted_rows(self, center: Vector | None = None) -> Matrix:
        """Return rows X with XᵀX/len(X) the moment about `center`: for few rows alone."""
        shift = np.zeros(self._source.n_features) if center is None else center
        parts = [np.sqrt(weights)[:, None] * (rows - shift) for rows, weights, _ in self._blocks()]
        stacked = np.vstack(parts)
        return np.asarray(stacked * np.sqrt(len(stacked) / self._unit.n_units))

    def _blocks(self) -> Iterator[tuple[Matrix, Vector, int]]:
        """Yield treated rows, their weights and how many of them were clipped."""
        for block in full_blocks(self._source, block_rows(self._source.n_features), self._watch):
            features, counts = self._unit.parted(block)
            treated, clipped = self._treatment.apply(features)
            yield np.asarray(treated), exact_weights(counts, self._unit.most), clipped


class _Sums:
    """Σ w(y − origin) and what goes with it; the origin is near the rows, so that no digits are lost."""

    def __init__(self, n_features: int) -> None:
        self.origin: Vector = np.zeros(n_features)
        self.total = np.zeros(n_features)
        self.squares = np.zeros(n_features)
        self.n_clipped = 0
        self._begun = False

    def add(self, rows: Matrix, weights: Vector, clipped: int) -> tuple[Matrix, Matrix]:
        """Add a block; return its rows less the origin, and the same times their weights."""
        if not self._begun:
            self.origin, self._begun = weights @ rows / weights.sum(), True
        moved = rows - self.origin
        weighted = weights[:, np.newaxis] * moved
        self.total += weighted.sum(axis=0)
        self.n_clipped += clipped
        return moved, weighted
