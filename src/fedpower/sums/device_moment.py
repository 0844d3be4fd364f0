"""Moments and products of rows on a device, one read for each, summed in float64."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpower.rows.source import Matrix, RowSource, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.device import (
    Device,
    device_blocks,
    like,
    precision,
    require_dense,
    resident,
    sum_products,
    sum_rows,
    torch,
    treat,
)
from fedpower.sums.device_exact import device_sums
from fedpower.sums.exact_moment import ExactMoments
from fedpower.sums.fused import Fused, fused_rows
from fedpower.sums.moment import Moments, require_center
from fedpower.sums.product import RowSummary, require_basis
from fedpower.sums.row_factors import FactoredRows, factored_rows


class DeviceProduct:
    """Moments and products of a source's treated rows, computed on a device."""

    def __init__(
        self, source: RowSource, treatment: RowTreatment, device: Device, watch: Watch = UNWATCHED
    ) -> None:
        treatment.check_width(source.n_features)
        require_dense(source)
        self._source = source
        self._treatment = treatment
        self._device = device
        self._watch = watch
        self._direct: list[Fused | FactoredRows] = []
        self._summary: RowSummary | None = None

    @property
    def where(self) -> str:
        """Where and in which precision, for the sentence about the kernel."""
        digits = "float32" if precision(self._source, self._device) == torch().float32 else "float64"
        return f"on {self._device.name} in {digits}"

    def moments(self) -> Moments:
        """Return the moments of the treated rows from one pass [CGL83 eq. 2.1]."""
        width = self._source.n_features
        double = {"dtype": torch().float64, "device": self._device.name}
        total, n_clipped = 0, 0
        origin, drift = torch().zeros(width, **double), torch().zeros(width, **double)
        scatter = torch().zeros((width, width), **double)
        for rows in self._blocks(check=True):
            treated, clipped = treat(self._treatment, rows)
            count = int(treated.shape[0])
            mean = sum_rows(treated) / count
            origin = mean if total == 0 else origin
            moved = treated - mean.to(treated.dtype)
            scatter += sum_products(moved, moved)
            step = (mean - origin) - drift
            if total:
                scatter += torch().outer(step * (total * count / (total + count)), step)
            total += count
            n_clipped += clipped
            drift += step * (count / total)
        covariance = _array((scatter + scatter.T) / (2 * total))
        return Moments(
            n_rows=total,
            origin=_array(origin),
            drift=_array(drift),
            covariance=covariance,
            n_clipped=n_clipped,
        )

    def sums(self) -> ExactMoments:
        """Return the sums over the bounded rows in whole numbers, from one pass."""
        return device_sums(self._source, self._treatment, self._device, self._watch)

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return (1/s) Σ (y − center)(y − center)ᵀ basis over the treated rows y."""
        width = self._source.n_features
        basis = require_basis(basis, width)
        shift = None if center is None else require_center(center, width)
        n_rows = self.summary().n_rows
        for direct in self._direct:
            if direct.takes(basis, shift):
                return direct.product(basis, shift) / n_rows
        result: Any = 0.0
        for rows in self._blocks(check=False):
            moved, _ = treat(self._treatment, rows)
            if shift is not None:
                moved = moved - like(shift, rows)
            result = result + sum_products(moved, moved @ like(basis, rows))
        return np.asarray(_array(result) / n_rows)

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        return self.summary().trace(center)

    def summary(self) -> RowSummary:
        """Return number, mean and variance of the rows, from one pass made on first use."""
        if self._summary is None:
            self._summary = self._summarise()
        return self._summary

    def _blocks(self, *, check: bool) -> Iterator[Any]:
        return device_blocks(self._source, self._device, check=check, watch=self._watch)

    def _summarise(self) -> RowSummary:
        """Merge the blocks' means and sums of squares about them [CGL83 eq. 2.1]."""
        double = {"dtype": torch().float64, "device": self._device.name}
        width = self._source.n_features
        total, n_clipped = 0, 0
        origin, drift = torch().zeros(width, **double), torch().zeros(width, **double)
        squares = torch().zeros(width, **double)
        largest, smallest = 0.0, float("inf")
        for rows in self._blocks(check=True):
            treated, clipped = treat(self._treatment, rows)
            high, low = _peaks(rows)
            largest, smallest = max(largest, high), min(smallest, low)
            count = int(treated.shape[0])
            mean = sum_rows(treated) / count
            origin = mean if total == 0 else origin
            moved = treated - mean.to(treated.dtype)
            squares += sum_rows(moved.square())
            step = (mean - origin) - drift
            squares += step.square() * (total * count / (total + count))
            total += count
            n_clipped += clipped
            drift += step * (count / total)
        tensor = resident(self._source, self._device)
        if tensor is not None and precision(self._source, self._device) == torch().float32:
            peaks = {"largest": largest, "smallest": smallest}
            ways = (
                fused_rows(tensor, self._treatment, **peaks),
                factored_rows(tensor, self._treatment, self._device, **peaks),
            )
            self._direct = [way for way in ways if way is not None]
        return RowSummary(
            n_rows=total,
            origin=_array(origin),
            drift=_array(drift),
            variances=_array(squares) / total,
            n_clipped=n_clipped,
        )


def _peaks(rows: Any) -> tuple[float, float]:
    """Return the largest and the smallest nonzero one of the rows' largest absolute values."""
    peaks = rows.abs().amax(dim=1)
    low = torch().where(peaks > 0, peaks, float("inf")).min()
    return float(peaks.max()), float(low)


def _array(tensor: Any) -> Any:
    """Return a tensor as a read-only array."""
    array = tensor.cpu().numpy()
    array.flags.writeable = False
    return array
