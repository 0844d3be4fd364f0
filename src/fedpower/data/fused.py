"""Products over float32 rows that lie on a GPU, bounded on the fly, in one read of them."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpower.data.device import torch
from fedpower.data.row_factors import LARGEST, NEAR, SMALLEST
from fedpower.data.rows import RowTreatment
from fedpower.data.source import Matrix, Vector

RANK = 16
"""Columns of the basis that the kernel multiplies at once."""

WIDEST = 512
"""Columns of rows that a multiprocessor holds together with their sums; wider ones are read twice."""

LAUNCH_ROWS = 2**22
"""Rows of one launch where a program adds up in float32: some 16,000 of them each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the kernel walks over rows of some width; found by trial on an H200."""

    rows: int
    programs: int
    stages: int
    double: bool


TILINGS = {
    128: Tiling(rows=64, programs=3, stages=1, double=True),
    256: Tiling(rows=32, programs=2, stages=3, double=False),
    512: Tiling(rows=16, programs=2, stages=1, double=False),
}
"""By width of a tile; `programs` is per multiprocessor, `double` whether sums are kept in float64."""


def fused_rows(
    rows: Any, treatment: RowTreatment, *, largest: float, smallest: float
) -> "Fused | None":
    """Return the fused product over a tensor's rows, or None where the kernel is not for them.

    Parameters
    ----------
    rows : the tensor.
    treatment : what is done to its rows.
    largest, smallest : of the rows' largest absolute values, the largest and the smallest but zero.
    """
    if rows.dtype != torch().float32 or rows.stride(1) != 1 or rows.shape[1] > WIDEST:
        return None
    if not (rows.is_cuda or interpreted()) or importlib.util.find_spec("triton") is None:
        return None
    gain, offset = affine(treatment, int(rows.shape[1]))
    reach = largest * float(np.abs(gain).max()) + float(np.abs(offset).max())
    tiny = treatment.normalize and (
        treatment.center is not None or smallest * float(np.abs(gain).min()) < SMALLEST
    )
    return None if reach > LARGEST or tiny else Fused(rows=rows, treatment=treatment)


def interpreted() -> bool:
    """Return whether Triton interprets kernels on the CPU, as its tests have it do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def affine(treatment: RowTreatment, n_features: int) -> tuple[Vector, Vector]:
    """Return factors and addends of the columns: what a treatment does before it bounds."""
    divisors = treatment.divisors(n_features)
    gain = np.ones(n_features) if divisors is None else 1.0 / divisors
    center = np.zeros(n_features) if treatment.center is None else treatment.center
    return gain, -center * gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """Sums of products over a tensor's treated rows, one read for each."""

    rows: Any
    treatment: RowTreatment

    def takes(self, basis: Matrix, center: Vector | None) -> bool:
        """Return whether the kernel multiplies this basis: not too wide, and a centre near the rows."""
        near = center is None or not self.treatment.bounded or float(np.abs(center).max()) <= NEAR
        return basis.shape[1] <= RANK and near

    def product(self, basis: Matrix, center: Vector | None) -> Matrix:
        """Return Σ (y − center)(y − center)ᵀ basis over the treated rows y.

        Rows without a bound are centred before they are multiplied; about bounded ones, of norm 1 at
        most, the centre is taken off the sums.
        """
        n_features, rank = basis.shape
        gain, offset = affine(self.treatment, n_features)
        if center is not None and not self.treatment.bounded:
            offset, center = offset - center, None
        peaks = np.abs(basis).max(axis=0)
        peaks[peaks == 0] = 1.0
        columns = np.zeros((RANK, n_features))
        columns[:rank] = (basis / peaks).T
        of_center = np.zeros(RANK) if center is None else columns @ center
        sums, totals = self._launch(columns, gain, offset, of_center)
        if center is not None:
            sums -= np.outer(totals, center)
        return np.asarray((sums[:rank] * peaks[:, None]).T)

    def _launch(
        self, columns: Matrix, gain: Vector, offset: Vector, of_center: Vector
    ) -> tuple[Matrix, Vector]:
        """Return the kernel's sums over all rows, added up in float64."""
        from fedpower.data.fused_kernel import sum_bounded_products  # noqa: PLC0415 - needs Triton

        library = torch()
        n_rows, n_features = (int(size) for size in self.rows.shape)
        width = max(128, 1 << (n_features - 1).bit_length())
        tiling = TILINGS[width]
        programs = self._multiprocessors() * tiling.programs
        high = columns.astype(np.float16)
        low = ((columns - high) * 2048).astype(np.float16)
        halves = library.as_tensor(np.stack([high, low]), device=self.rows.device)
        vectors = np.concatenate([gain, offset, of_center]).astype(np.float32)
        moved = library.as_tensor(vectors, device=self.rows.device)
        sums_as = library.float64 if tiling.double else library.float32
        place = {"dtype": sums_as, "device": self.rows.device}
        # The last column of each program's sums is that of its scores.
        out = library.empty((programs, RANK, n_features + 1), **place)
        found: Any = 0.0
        bound = 2 if self.treatment.normalize else int(self.treatment.bounded)
        with _on(self.rows.device):
            for part in self.rows.split(n_rows if tiling.double else LAUNCH_ROWS):
                sum_bounded_products[(programs,)](
                    part, halves, moved, out, int(part.shape[0]), programs, D=n_features,
                    STRIDE=int(self.rows.stride(0)), ROWS=tiling.rows, WIDTH=width, R=RANK,
                    AFFINE=bool((gain != 1).any() or offset.any()), BOUND=bound,
                    CENTER=bool(of_center.any()), STAGES=tiling.stages,
                    DOUBLE=tiling.double, num_warps=4,
                )  # fmt: skip
                found = found + out.sum(dim=0, dtype=library.float64)
        sums = found.cpu().numpy()
        return sums[:, :n_features], sums[:, n_features]

    def _multiprocessors(self) -> int:
        if not self.rows.is_cuda:
            return 1
        return int(torch().cuda.get_device_properties(self.rows.device).multi_processor_count)


def _on(device: Any) -> Any:
    """Return a context in which launches go to the device."""
    return torch().cuda.device(device) if device.type == "cuda" else torch().device(device)
