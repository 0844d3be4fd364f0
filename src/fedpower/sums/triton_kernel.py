"""Rows on a GPU as integers in three int8 limbs, and the products of these on its tensor cores: exact sums.

An integer z from −2²⁰ to 2²⁰ is l₀ + 2⁷l₁ + 2¹⁴l₂ with limbs from −64 to 64. Products of two
limbs are at most 2¹², so that an int32 holds the sum over 2¹⁸ rows.
"""

# ruff: noqa: PLR0917 - what a kernel is given

from typing import Any

import numpy as np
import triton
import triton.language as tl

from fedpower.rules.treatment import RowTreatment, margin
from fedpower.sums.lattice import SIDE, LatticeRows

_TILE = 2**13
"""Cells that a program of `_put_limbs` has on the chip at a time."""

_SIDE, _DEPTH = 128, 128
"""Sides of a tile of the product, and rows that are multiplied at once."""

_SINGLE = (1e-12, 1e12)
"""Bounds for which rows in float32 stay in it: the squares of what matters do not leave its range."""


@triton.jit
def _cells(
    x, columns, row, n_rows, column, D: tl.constexpr, STRIDE: tl.constexpr, SINGLE: tl.constexpr,
    MOVES: tl.constexpr,
):  # fmt: skip
    """Return some columns of some rows, centered, scaled and clipped; 0 beyond the last row and column."""
    inside = (row < n_rows)[:, None] & (column < D)[None, :]
    values = tl.load(x + row.to(tl.int64)[:, None] * STRIDE + column[None, :], mask=inside, other=0.0)
    if not SINGLE:
        values = values.to(tl.float64)
    if MOVES:
        center = tl.load(columns + column, mask=column < D, other=0.0)
        gain = tl.load(columns + D + column, mask=column < D, other=0.0)
        low = tl.load(columns + 2 * D + column, mask=column < D, other=0.0)
        high = tl.load(columns + 3 * D + column, mask=column < D, other=0.0)
        values = (values - center[None, :]) * gain[None, :]
        # Comparisons with NaN are false: it stays one.
        values = tl.where(values < low[None, :], low[None, :], values)
        values = tl.where(values > high[None, :], high[None, :], values)
        values = tl.where(inside, values, 0.0)
    return values


@triton.jit
def _put_limbs(
    x,  # n×D rows in float32 or float64, STRIDE apart
    columns,  # 4×D float64: center, gain, and the ends of the range after both
    rule,  # 6 numbers: bound, counted, target, stretch, and the smallest and largest squares that are trusted
    limbs,  # 3D×LENGTH int8: all columns' l₀, then l₁, then l₂; a column's rows one after the other
    totals,  # D int64: sums of the integers
    states,  # n int8: 1 where a row is clipped; 2 where it is left out, for its squares are not trusted
    n_rows,
    LENGTH,
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    SINGLE: tl.constexpr,
    MOVES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    bound = tl.load(rule)
    counted = tl.load(rule + 1)
    target = tl.load(rule + 2)
    stretch = tl.load(rule + 3)
    smallest = tl.load(rule + 4)
    largest = tl.load(rule + 5)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    squares = tl.zeros([ROWS], dtype=tl.float32 if SINGLE else tl.float64)
    values = _cells(x, columns, row, n_rows, tl.arange(0, COLUMNS), D, STRIDE, SINGLE, MOVES)
    squares += tl.sum(values * values, axis=1)
    for start in tl.range(COLUMNS, D, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        more = _cells(x, columns, row, n_rows, column, D, STRIDE, SINGLE, MOVES)
        squares += tl.sum(more * more, axis=1)
    norm = tl.sqrt(squares)
    trusted = squares <= largest
    clipped = norm > counted
    length = tl.maximum(norm * stretch, bound)
    if NORMALIZE:
        trusted = trusted & ((squares >= smallest) | (row >= n_rows))
        clipped = row < 0
        length = tl.where(norm > 0, norm, 1.0)
    factor = tl.where(trusted, target / length, 0.0)
    state = tl.where(trusted, clipped.to(tl.int8), 2)
    tl.store(states + row, state.to(tl.int8), mask=row < n_rows)
    for start in tl.range(0, D, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        if D > COLUMNS:
            values = _cells(x, columns, row, n_rows, column, D, STRIDE, SINGLE, MOVES)
        scaled = tl.where(trusted[:, None], values * factor[:, None], 0.0)
        whole = scaled.to(tl.int32)  # which truncates
        tl.atomic_add(totals + column, tl.sum(whole, axis=0).to(tl.int64), mask=column < D)
        first = ((whole + 64) & 127) - 64
        rest = (whole - first) >> 7
        second = ((rest + 64) & 127) - 64
        third = (rest - second) >> 7
        place = limbs + column.to(tl.int64)[None, :] * LENGTH + row[:, None]
        inside = (column < D)[None, :] & (row < LENGTH)[:, None]
        step = D * LENGTH
        tl.store(place, first.to(tl.int8), mask=inside)
        tl.store(place + step, second.to(tl.int8), mask=inside)
        tl.store(place + 2 * step, third.to(tl.int8), mask=inside)


@triton.jit
def _multiply(
    limbs,
    tiles,  # 2×n_tiles int32: first row and column of each tile of the product
    products,  # n_tiles×SIDE×SIDE int64, added to
    LENGTH,
    n_tiles,
    CHUNK,
    WIDTH: tl.constexpr,
    SIDE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    tile = tl.program_id(0)
    chunk = tl.program_id(1)
    i = tl.load(tiles + tile) + tl.arange(0, SIDE)
    j = tl.load(tiles + n_tiles + tile) + tl.arange(0, SIDE)
    k = tl.arange(0, DEPTH)
    left = limbs + i.to(tl.int64)[:, None] * LENGTH + k[None, :]
    right = limbs + j.to(tl.int64)[:, None] * LENGTH + k[None, :]
    total = tl.zeros([SIDE, SIDE], dtype=tl.int32)
    for row in tl.range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, LENGTH), DEPTH):
        one = tl.load(left + row, mask=(i < WIDTH)[:, None], other=0)
        two = tl.load(right + row, mask=(j < WIDTH)[:, None], other=0)
        total = tl.dot(one, tl.trans(two), total, out_dtype=tl.int32)
    inside = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.atomic_add(products + tile.to(tl.int64) * (SIDE * SIDE) + inside, total.to(tl.int64))


class LimbSums:
    """Σ z zᵀ and Σ z over rows of one width on one GPU."""

    def __init__(self, torch: Any, treatment: RowTreatment, width: int, device: Any) -> None:
        self._torch, self._width, self._normalize = torch, width, treatment.normalize
        self._place = {"device": device}
        shift, endless = LatticeRows(treatment, width).shift, np.outer([-np.inf, np.inf], np.ones(width))
        columns = np.zeros(1) if shift is None else np.stack([*shift.arrays, *endless][:4])
        self._moves = shift is not None
        self._columns = torch.as_tensor(columns, **self._place)
        # What float32 rounds is left to rows that are shortened: stretched before they are compared.
        bound, double, single = treatment.row_norm or 1.0, margin(width), (width + 8) * 2.0**-23
        self._single = _SINGLE[0] <= bound <= _SINGLE[1] and not self._normalize and not self._moves
        self._rules = [
            torch.tensor([bound, *rule], dtype=kind, **self._place)
            for rule, kind in (
                ((bound * (1 + double), SIDE * (1 - double), 1.0, 1e-280, 1e280), torch.float64),
                ((bound * (1 + single), SIDE, 1.0 + single, 0.0, 1e36), torch.float32),
            )
        ]
        self._count = -(-3 * width // _SIDE)
        tiles = [(i, j) for i in range(self._count) for j in range(i + 1)]
        self._tiles = torch.tensor(tiles, dtype=torch.int32, **self._place).T.contiguous()
        self._products = torch.zeros((len(tiles), _SIDE, _SIDE), dtype=torch.int64, **self._place)
        self.total = torch.zeros(width, dtype=torch.int64, **self._place)

    def add(self, block: Any) -> Any:
        """Add the rows of a tensor; return the state of each: 1 is clipped, 2 is left out."""
        torch, (n_rows, width) = self._torch, block.shape
        length = -(-n_rows // _DEPTH) * _DEPTH
        columns = min(128, triton.next_power_of_2(width))
        rows = min(_TILE // columns, 128)
        single = self._single and block.dtype == torch.float32
        limbs = torch.empty((3 * width, length), dtype=torch.int8, **self._place)
        states = torch.empty(n_rows, dtype=torch.int8, **self._place)
        _put_limbs[(-(-length // rows),)](
            block, self._columns, self._rules[single], limbs, self.total, states, n_rows, length,
            D=width, STRIDE=block.stride(0), SINGLE=single, MOVES=self._moves, NORMALIZE=self._normalize,
            ROWS=rows, COLUMNS=columns, num_warps=8,
        )  # fmt: skip
        n_tiles = self._tiles.shape[1]
        chunk = 2**15 if self._count < 8 else 2**17  # products of limbs are at most 2¹²
        _multiply[(n_tiles, -(-length // chunk))](
            limbs, self._tiles * _SIDE, self._products, length, n_tiles, chunk,
            WIDTH=3 * width, SIDE=_SIDE, DEPTH=_DEPTH, num_warps=8, num_stages=3,
        )  # fmt: skip
        return states

    def squares(self) -> tuple[Any, Any]:
        """Return Σ z zᵀ as high·2³² + low."""
        torch, width, side = self._torch, self._width, self._count * _SIDE
        grid = torch.zeros(
            (self._count, self._count, _SIDE, _SIDE), dtype=torch.int64, device=self.total.device
        )
        for place, (i, j) in enumerate(self._tiles.T.tolist()):
            grid[i, j] = self._products[place]
        lower = grid.transpose(1, 2).reshape(side, side)[: 3 * width, : 3 * width].tril()
        limbs = (lower + lower.tril(-1).T).reshape(3, width, 3, width)
        low, high = torch.zeros_like(limbs[0, :, 0]), torch.zeros_like(limbs[0, :, 0])
        for a in range(3):
            for b in range(3):
                shift = 7 * (a + b)
                high += limbs[a, :, b] >> (32 - shift)
                low += (limbs[a, :, b] & ((1 << (32 - shift)) - 1)) << shift
        return low & 0xFFFFFFFF, high + (low >> 32)
