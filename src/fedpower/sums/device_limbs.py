"""Sums of whole numbers by the tensor cores of a GPU: the launches around `limb_kernel`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpower.linalg.words import WORD, Words
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import has_triton, interpreted, multiprocessors, on, torch
from fedpower.sums.device_left import Outcome, for_kernels, moves, rows_in_memory
from fedpower.sums.exact_moment import ExactMoments, ExactSum
from fedpower.sums.lattice_rows import CUT, OFFSET, SHIFT, LatticeRows

_MOST_COLUMNS = 2048
"""Columns of rows that stay on the chip between being read and being written as limbs."""

_MOST_TILES = 2047
"""Tiles of rows whose integers, at most 2²⁰ each, one program adds up in an int32."""

_PROGRAMS = 16
"""Programs for each multiprocessor that put rows on the lattice."""

_ROWS, _REPEATS, _FEW = 128, 127, 16
"""Rows that are added up in float32, how often before an int32 is full, and rows that always can be."""

_LIMB = 10
"""Bits of the lower limb; with as many for the upper one, sums of either's squares grow alike."""

_CHUNK = _ROWS * _REPEATS

_PART, _SHARES = 1024, 16
"""Numbers of a product that one program adds up, and how many programs share its chunks."""

_PART_BYTES = 2**30
"""Bytes of the chunks' own products: blocks of wide rows are kept to so many chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How the columns are shared out."""

    width: int

    @property
    def half(self) -> int:
        """Columns of a limb, so many that rows begin at a multiple of 16 bytes."""
        return -(-self.width // 8) * 8

    @property
    def columns(self) -> int:
        """Columns of a tile on its way to the lattice."""
        return max(16, 1 << (self.width - 1).bit_length())

    @property
    def piece(self) -> int:
        """Columns that lie beside each other in a tile: few threads share a row."""
        return min(self.columns, max(32, self.columns // 8))

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 4096 // self.columns

    @property
    def warps(self) -> int:
        """Warps that put a tile on the lattice."""
        return 4 if self.columns <= 128 else 2

    @property
    def side(self) -> int:
        """Rows and columns of a tile of the product."""
        return 64 if self.half <= 32 else 128

    @property
    def count(self) -> int:
        """Tiles on the diagonal of the product."""
        return -(-2 * self.half // self.side)

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """Row and column of each tile, in the kernels' order: on the diagonal, then above it."""
        above = [(row, column) for column in range(self.count) for row in range(column)]
        return [(place, place) for place in range(self.count)] + above


class LimbSums:
    """Σ z zᵀ and Σ z over rows on a GPU, in 64-bit integers."""

    def __init__(self, rule: LatticeRows, treatment: RowTreatment, width: int) -> None:
        self._rule = rule
        self._treatment = treatment
        self._shape = _Shape(width=width)
        self._held: Any = None
        self._numbers: tuple[Any, Any] | None = None
        self._begin()
        self.anew: Any = None  # chunks of the last block that were multiplied anew

    def _begin(self) -> None:
        self.n_rows = 0
        self._total: Any = 0
        self._sums: Any = None
        self._others: Any = 0

    @staticmethod
    def takes(block: Any, treatment: RowTreatment, rule: LatticeRows) -> bool:
        """Return whether the kernels are for these rows: on an NVIDIA GPU, and not too wide."""
        here = (block.is_cuda and torch().version.cuda is not None) or interpreted()
        fits = block.shape[1] <= _MOST_COLUMNS and for_kernels(block, treatment, rule)
        return here and fits and has_triton()

    @staticmethod
    def most_rows(tensor: Any) -> int:
        """Return how many rows of a tensor on a GPU make a block."""
        shape = _Shape(width=int(tensor.shape[1]))
        chunk_bytes = 4 * shape.side**2 * len(shape.tiles)
        return min(rows_in_memory(tensor), max(1, _PART_BYTES // chunk_bytes) * _CHUNK)

    def add(self, block: Any, _: ExactSum) -> Outcome:
        """Add a block's rows; return what became of them. Those that are left are rows of zeros here."""
        n_rows = int(block.shape[0])
        if self._held is None or self._held.shape[0] < n_rows:
            form = {"dtype": torch().float16, "device": block.device}
            self._held = torch().empty((n_rows, 2 * self._shape.half), **form)
        with on(block.device):
            states, total = self._put(block)
            self._multiply(n_rows)
        self._total = self._total + total
        self.n_rows += n_rows
        return Outcome.of(states)

    def _put(self, block: Any) -> tuple[Any, Any]:
        """Put the rows' limbs into this object's memory; return the rows' states and Σ z."""
        from fedpower.sums.limb_kernel import put_on_lattice  # noqa: PLC0415 - needs Triton

        shape, device = self._shape, block.device
        n_rows, width = (int(size) for size in block.shape)
        center, scale = self._treatment.center, self._treatment.scale
        if self._numbers is None:
            numbers = self._rule.numbers()
            # Squares are added up over pieces, then over the columns of a piece, each in any order [H02
            # §4.2]: with the squares' own rounding and the product with these numbers, fewer roundings
            # than this. The wider margin of the processor would leave it more rows to decide.
            slack = (shape.columns // shape.piece + shape.piece + 8) * 2.0**-53
            numbers[:2] = [1 - slack, 1 + slack]
            rule = torch().as_tensor(np.array(numbers), device=device)
            self._numbers = (moves(self._treatment, width, device), rule)
        states = torch().empty(n_rows, dtype=torch().int8, device=device)
        n_tiles = -(-n_rows // shape.rows)
        programs = min(n_tiles, _PROGRAMS * multiprocessors(device))
        programs = max(programs, -(-n_tiles // _MOST_TILES))
        totals = torch().empty((programs, width), dtype=torch().int64, device=device)
        put_on_lattice[(programs,)](
            block, *self._numbers, self._held, states, totals, n_rows,
            D=width, STRIDE=int(block.stride(0)), HALF=shape.half,
            PIECES=shape.columns // shape.piece, PIECE=shape.piece, ROWS=shape.rows,
            CENTER=center is not None, GAIN=scale is not None,
            NORMALIZE=self._treatment.normalize, SHORT_IS_ZERO=self._rule.short_is_zero,
            OFFSET=int(OFFSET), SHIFT=SHIFT, CUT=CUT, LIMB=_LIMB, num_warps=shape.warps, num_stages=1,
            enable_fp_fusion=False,
        )  # fmt: skip
        return states, totals.sum(dim=0)

    def _multiply(self, n_rows: int) -> None:
        """Add the tiles of Σ w wᵀ over the rows whose limbs w are in this object's memory."""
        from fedpower.sums.limb_kernel import add_up, multiply, multiply_few  # noqa: PLC0415 - Triton

        shape, device = self._shape, self._held.device
        chunks, tiles = -(-n_rows // _CHUNK), len(shape.tiles)
        size = (tiles, shape.side, shape.side)
        products = torch().empty((chunks, *size), dtype=torch().int32, device=device)
        self.anew = torch().zeros(chunks, dtype=torch().int32, device=device)
        if self._sums is None:
            self._sums = torch().zeros(size, dtype=torch().int64, device=device)
        forms = {"WIDTH": 2 * shape.half, "SIDE": shape.side, "COUNT": shape.count}
        for diagonal, made in ((True, shape.count), (False, tiles - shape.count)):
            if made:
                multiply[(chunks * made,)](
                    self._held, products, self.anew, n_rows, **forms, DIAGONAL=diagonal,
                    ROWS=_ROWS, REPEATS=_REPEATS, STAGES=3, num_warps=shape.side // 16,
                )  # fmt: skip
        multiply_few[(chunks * tiles,)](
            self._held, products, self.anew, self._sums, n_rows, **forms, CHUNK=_CHUNK, FEW=_FEW,
            num_warps=8,
        )  # fmt: skip
        numbers = tiles * shape.side**2
        parts = (numbers // _PART, min(chunks, _SHARES))
        add_up[parts](products, self._sums, chunks, SIZE=numbers, PART=_PART)

    def add_integers(self, integers: Any) -> None:
        """Add a few rows that are counted already, as zeros: their integers, in float64."""
        self._total = self._total + integers.sum(dim=0).long()
        self._others = self._others + (integers.T @ integers).long()

    def hand_over(self, into: ExactSum) -> None:
        """Add what was summed to the processor's sums, and begin anew."""
        if not self.n_rows:
            return
        into.take(
            ExactMoments(
                n_rows=self.n_rows,
                lattice=self._rule.lattice,
                total=self._total.cpu().numpy(),
                squares=self._squares(),
                n_clipped=0,
            )
        )
        self._begin()

    def _squares(self) -> Words:
        """Return Σ z zᵀ from the tiles of Σ w wᵀ, in two words where one might not hold it."""
        width, half, side = self._shape.width, self._shape.half, self._shape.side
        count = self._shape.count
        form = {"dtype": torch().int64, "device": self._sums.device}
        tiles = torch().zeros((count, count, side, side), **form)
        places = torch().as_tensor(self._shape.tiles, **form)
        tiles[places[:, 0], places[:, 1]] = self._sums
        both = tiles.transpose(1, 2).reshape(count * side, count * side)
        upper, lower = slice(0, width), slice(half, half + width)
        first = _mirrored(both[upper, upper])  # of 2^(2·limb)
        cross = both[upper, lower] + both[upper, lower].T  # of 2^limb
        last = _mirrored(both[lower, lower]) + self._others
        if self.n_rows <= self._rule.lattice.word_rows:
            squares = (first << (2 * _LIMB)) + (cross << _LIMB) + last
            return Words(low=squares.cpu().numpy())
        high = (first >> (WORD - 2 * _LIMB)) + (cross >> (WORD - _LIMB))
        low = (first & ((1 << (WORD - 2 * _LIMB)) - 1)) << (2 * _LIMB)
        low += ((cross & ((1 << (WORD - _LIMB)) - 1)) << _LIMB) + last
        return Words(low=low.cpu().numpy(), high=high.cpu().numpy()).two()


def _mirrored(upper: Any) -> Any:
    """Return a symmetric matrix from what is on and above its diagonal."""
    return upper.triu() + upper.triu(1).T
