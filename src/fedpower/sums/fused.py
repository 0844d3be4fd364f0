"""Products over float32 rows that lie on a GPU, bounded on the fly, in one read of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpower.rows.source import Matrix, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import has_triton, interpreted, multiprocessors, on, torch
from fedpower.sums.row_factors import LARGEST, NEAR, SMALLEST

RANK = 16
"""Columns of the basis that the kernel multiplies at once."""

WIDEST = 4096
"""Columns of rows that the kernel is for; wider ones are read twice."""

ROWS, BLOCK = 64, 32
"""Rows of a tile, as many as a warp group multiplies at once, and columns that are multiplied at once."""

LAUNCH_VALUES = 2**31
"""Numbers read by one launch, in which a program adds up some hundreds of tiles in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiling:
    """How the kernel walks over rows of some width; found by trial on an H200."""

    blocks: int
    programs: int
    registers: int
    ahead: bool


_TILINGS = {
    128: _Tiling(blocks=4, programs=3, registers=168, ahead=True),
    224: _Tiling(blocks=7, programs=2, registers=255, ahead=True),
    256: _Tiling(blocks=8, programs=2, registers=255, ahead=False),
    WIDEST: _Tiling(blocks=4, programs=4, registers=128, ahead=False),
}
"""By the number of columns up to which."""


def fused_rows(rows: Any, treatment: RowTreatment, *, largest: float, smallest: float) -> "Fused | None":
    """Return the fused product over a tensor's rows, or None where the kernel is not for them."""
    if treatment.low is not None:
        return None
    if rows.dtype != torch().float32 or rows.stride(1) != 1 or rows.shape[1] > WIDEST:
        return None
    if not (rows.is_cuda or interpreted()) or not has_triton():
        return None
    gain, offset = affine(treatment, int(rows.shape[1]))
    reach = largest * float(np.abs(gain).max()) + float(np.abs(offset).max())
    tiny = treatment.normalize and (
        treatment.center is not None or smallest * float(np.abs(gain).min()) < SMALLEST
    )
    if reach > LARGEST or tiny:
        return None
    return Fused(rows=rows, treatment=treatment, gain=gain, offset=offset)


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
    gain: Vector
    offset: Vector

    def takes(self, basis: Matrix, center: Vector | None) -> bool:
        """Return whether the kernel multiplies this basis: not too wide, and a centre near the rows."""
        near = center is None or not self.treatment.bounded or np.linalg.norm(center) <= NEAR
        return basis.shape[1] <= RANK and bool(near)

    def product(self, basis: Matrix, center: Vector | None) -> Matrix:
        """Return Σ (y − center)(y − center)ᵀ basis over the treated rows y."""
        n_features, rank = basis.shape
        offset = self.offset
        if center is not None and not self.treatment.bounded:
            offset, center = offset - center, None
        lengths = np.sqrt(np.einsum("ij,ij->j", basis, basis))
        lengths[lengths == 0] = 1.0
        columns = np.zeros((n_features + 1, RANK), dtype=np.float32)
        columns[:-1, :rank] = basis / lengths
        if center is not None:
            columns[-1] = center @ columns[:-1]
        sums = self._launch(columns, offset)
        found, totals = sums[:rank, :-1], sums[:rank, -1]
        if center is not None:
            found = found - np.outer(totals * 2.0**29, center)
        return np.asarray((found * (lengths * 2.0**-29)[:, None]).T)

    def _launch(self, columns: Matrix, offset: Vector) -> Matrix:
        """Return the kernel's sums over all rows, added up in float64, 2²⁹ times what they stand for."""
        from fedpower.sums.fused_kernel import sum_bounded_products  # noqa: PLC0415 - needs Triton

        library = torch()
        place = {"dtype": library.float32, "device": self.rows.device}
        n_features = int(self.rows.shape[1])
        tiling = next(tiling for widest, tiling in _TILINGS.items() if n_features <= widest)
        blocks = min(-(-n_features // BLOCK), tiling.blocks)
        shares = -(-n_features // (BLOCK * blocks))
        groups = max(1, multiprocessors(self.rows.device) * tiling.programs // shares)
        moves = bool((self.gain != 1).any() or offset.any())
        z = library.as_tensor(columns, **place)
        affine = library.as_tensor(np.stack([self.gain, offset]), **place) if moves else z
        out = library.empty((groups, RANK, n_features + 1), **place)
        sums: Any = None
        with on(self.rows.device):
            for part in self.rows.split(LAUNCH_VALUES // n_features):
                tiles = -(-int(part.shape[0]) // ROWS)
                meeting = _meeting(tiles, place) if shares > 1 else (out, out, out)
                for score, add in self._launches(shares):
                    sum_bounded_products[(groups * shares,)](
                        part, z, affine, *meeting, out, int(part.shape[0]), groups,
                        D=n_features, STRIDE=int(self.rows.stride(0)), ROWS=ROWS, BLOCK=BLOCK,
                        BLOCKS=blocks, SHARES=shares, R=RANK, AFFINE=moves,
                        BOUND=2 if self.treatment.normalize else int(self.treatment.bounded),
                        CENTER=bool(columns[-1].any()), AHEAD=tiling.ahead, SCORE=score, SUM=add,
                        num_warps=4, maxnreg=tiling.registers,
                    )  # fmt: skip
                found = out.sum(dim=0, dtype=library.float64)
                sums = found if sums is None else sums + found
        return np.asarray(sums.cpu().numpy())

    def _launches(self, shares: int) -> list[tuple[bool, bool]]:
        """Return what each launch does, scores and sums: one where programs can wait for each other."""
        together = shares == 1 or shares <= multiprocessors(self.rows.device)
        return [(True, True)] if together else [(True, False), (False, True)]


def _meeting(tiles: int, place: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return where the shares of a launch meet: the rows' scores and squares, and how many are in."""
    numbers = torch().zeros(tiles * (ROWS * (RANK + 1) + 1) + 2, **place)
    scores, squares, done = numbers.split([tiles * ROWS * RANK, tiles * ROWS, tiles + 2])
    return scores, squares, done.view(torch().int32)
