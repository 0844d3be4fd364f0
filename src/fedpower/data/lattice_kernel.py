"""Rows put on the lattice by one Triton kernel: read once, bounded, rounded and written as whole numbers.

It does what `device_exact.on_lattice` does in PyTorch, operation by operation, and gives the same bits:
every step is one correctly rounded float64 operation. So a product and a sum are never fused into one
(``enable_fp_fusion=False`` where it is launched).
"""

# ruff: noqa: SIM108 - Triton settles what is known before it compiles

import triton
import triton.language as tl


@triton.jit
def put_on_lattice(  # noqa: PLR0915, PLR0917 - one pass, one body
    x,  # n×D rows in float32 or float64, STRIDE apart
    affine,  # 2×D float64: centre and gain, a row being (x − centre)·gain before it is bounded
    rule,  # 9 float64: `LatticeRows.numbers`
    integers,  # n×D float64: the whole numbers; zeros for rows that are left to the processor
    states,  # n int8: 0 settled, 1 settled and clipped, 2 left to the processor
    totals,  # programs×D float64: each program's sums of the integers
    n_rows,
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,  # D, up to a power of two
    ROWS: tl.constexpr,  # rows of a tile
    CENTER: tl.constexpr,
    GAIN: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SHORT_IS_ZERO: tl.constexpr,  # whether rows with tiny squares are nothing beside the bound
    OFFSET: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Write the integers of every row and whether they are settled, and add up those that are."""
    below = tl.load(rule)
    above = tl.load(rule + 1)
    limit = tl.load(rule + 2)
    longer = tl.load(rule + 3)
    target = tl.load(rule + 4)
    factor = tl.load(rule + 5)
    smallest = tl.load(rule + 6)
    largest = tl.load(rule + 7)
    most = tl.load(rule + 8)
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    inside = (column < D)[None, :]
    if CENTER:
        center = tl.load(affine + column, mask=column < D, other=0.0)[None, :]
    if GAIN:
        gain = tl.load(affine + D + column, mask=column < D, other=0.0)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float64)
    for tile in tl.range(program, tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        mask = (row < n_rows)[:, None] & inside
        place = row.to(tl.int64)[:, None]
        values = tl.load(x + place * STRIDE + column[None, :], mask=mask, other=0.0).to(tl.float64)
        if CENTER:
            values = values - center
        if GAIN:
            values = values * gain
        squares = tl.sum(values * values, axis=1)
        low = ((squares * below).to(tl.int64, bitcast=True) + OFFSET) >> SHIFT
        high = ((squares * above).to(tl.int64, bitcast=True) + OFFSET) >> SHIFT
        rounded = (((low + 1) << SHIFT) - OFFSET).to(tl.float64, bitcast=True)
        usual = (squares >= smallest) & (squares <= largest)
        if NORMALIZE:
            long = usual
            settled = usual & (low == high)
        else:
            long = rounded > limit
            settled = usual & ((low == high) | ((squares < limit / 2) & (long == 0)))
            if SHORT_IS_ZERO:
                settled = settled | (squares < smallest)
        factors = tl.where(long & usual, target / tl.sqrt(rounded), factor)
        values = values * factors[:, None]
        values = (values + 6755399441055744.0) - 6755399441055744.0  # 1.5·2⁵²: to a whole number
        settled = settled & (tl.sum(values * values, axis=1) <= most)
        values = tl.where(mask & settled[:, None], values, 0.0)
        tl.store(integers + place * D + column[None, :], values, mask=mask)
        if NORMALIZE:
            clipped = 0
        else:
            clipped = (long & (rounded > longer)).to(tl.int32)
        tl.store(states + row, tl.where(settled, clipped, 2).to(tl.int8), mask=row < n_rows)
        sums += values
    tl.store(totals + program * D + column, tl.sum(sums, axis=0), mask=column < D)
