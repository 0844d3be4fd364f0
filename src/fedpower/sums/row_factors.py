"""Products over float32 rows that lie on a device, without copies of the bounded rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpower.rows.source import Matrix, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import Device, block_rows, torch

LARGEST, SMALLEST = 1e15, 1e-15
"""Between these the square of a number keeps its digits in float32."""

BLOCK_BYTES = 4 * 2**30
"""Bytes of rows in one matrix product on an accelerator."""

NEAR = 2.0
"""How far a centre of bounded rows may be from the origin, in any column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoredRows:
    """Sums of products over bounded rows y = φ·(x/scale), from x and one factor φ a row."""

    rows: Any
    device: Device
    gain: Vector
    factors: Any

    def takes(self, basis: Matrix, center: Vector | None) -> bool:
        """Return whether a product with this basis keeps float32's accuracy: the centre is near."""
        del basis
        return center is None or float(np.abs(center).max()) <= NEAR

    def product(self, basis: Matrix, center: Vector | None) -> Matrix:
        """Return Σ (y − center)(y − center)ᵀ basis over the bounded rows y."""
        library = torch()
        place = {"dtype": self.rows.dtype, "device": self.rows.device}
        scaled = library.as_tensor(np.ascontiguousarray(basis.T * self.gain), **place).T
        middle = np.zeros(basis.shape[0]) if center is None else center
        of_center = library.as_tensor(middle @ basis, **place)
        sums: Any = 0.0
        totals: Any = 0.0
        width = int(self.rows.shape[1])
        on_cpu = self.device.name == "cpu"
        size = block_rows(width, self.device) if on_cpu else BLOCK_BYTES // (4 * width)
        for part, factor in zip(self.rows.split(size), self.factors.split(size), strict=True):
            scores = factor * (part @ scaled) - of_center
            sums = sums + (part.T @ (factor * scores)).double()
            totals = totals + scores.sum(dim=0, dtype=library.float64)
        moved = self.gain[:, None] * sums.cpu().numpy() - np.outer(middle, totals.cpu().numpy())
        return np.asarray(moved)


def factored_rows(
    rows: Any, treatment: RowTreatment, device: Device, *, largest: float, smallest: float
) -> FactoredRows | None:
    """Return the product over a tensor's bounded rows, or None where it would lose digits."""
    library = torch()
    divisors = treatment.divisors(int(rows.shape[1]))
    gain = np.ones(int(rows.shape[1])) if divisors is None else 1.0 / divisors
    reach, least = largest * float(gain.max()), smallest * float(gain.min())
    if treatment.center is not None or not treatment.bounded or reach > LARGEST:
        return None
    if treatment.normalize and least < SMALLEST:
        return None
    scales = library.as_tensor(gain, dtype=rows.dtype, device=rows.device)
    parts = []
    for part in rows.split(block_rows(int(rows.shape[1]), device)):
        scaled = part if divisors is None else part * scales
        norms = library.linalg.vector_norm(scaled, dim=1, keepdim=True)
        inverse = 1.0 / library.where(norms > 0, norms, 1.0)
        parts.append(inverse if treatment.normalize else inverse.clamp(max=1.0))
    factors = library.cat(parts)
    return FactoredRows(rows=rows, device=device, gain=gain, factors=factors)
