"""The fused kernel in Triton: rows bounded and multiplied twice while they are on the chip.

Every row x is scaled to a unit vector u = x/‖x‖, of which two float16 numbers, u ≈ hi + lo/2¹¹, keep
22 bits; the tensor cores multiply those exactly and add in float32. The three products that count
(hi·hi, hi·lo, lo·hi) are off by about 2⁻²² of the row's norm: float32's accuracy at float16's speed,
for rows of any length.
"""

import triton
import triton.language as tl


@triton.jit
def sum_bounded_products(  # noqa: PLR0915, PLR0917 - one pass, one body
    x,  # s×d float32 rows, STRIDE apart
    z,  # 2×R×d float16: the basis transposed, and what that leaves times 2¹¹
    vectors,  # 2d + R float32: gain, offset (rows are x·gain + offset before they are bounded), centerᵀZ
    out,  # programs×R×(d + 1): Σ φu wᵀ of the rows that each program took, and the sum of their scores
    n_rows,
    n_programs,
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,  # rows of a tile
    WIDTH: tl.constexpr,  # columns of a tile: the power of 2 above d
    R: tl.constexpr,  # columns of the basis, filled up to 16
    AFFINE: tl.constexpr,  # whether gain and offset are there
    BOUND: tl.constexpr,  # 0: rows as they are, 1: clipped to norm 1, 2: scaled to norm 1
    CENTER: tl.constexpr,  # whether centerᵀZ is there
    STAGES: tl.constexpr,
    DOUBLE: tl.constexpr,  # whether tiles are added up in float64
):
    """Write Σ (y − c)(yᵀZ − cᵀZ) over each program's rows, less the part −c(…) that the caller adds."""
    program = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    rank = tl.arange(0, R)
    line = tl.arange(0, ROWS)
    inside = columns < D
    place = rank[None, :] * D + columns[:, None]
    z1 = tl.load(z + place, mask=inside[:, None], other=0.0)
    z2 = tl.load(z + R * D + place, mask=inside[:, None], other=0.0)
    if AFFINE:
        factor = tl.load(vectors + columns, mask=inside, other=0.0)
        addend = tl.load(vectors + D + columns, mask=inside, other=0.0)
    if CENTER:
        of_center = tl.load(vectors + 2 * D + rank)
    sums: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    total = tl.zeros([R], dtype=sums)
    result = tl.zeros([R, WIDTH], dtype=sums)
    for tile in tl.range(program, tl.cdiv(n_rows, ROWS), n_programs, num_stages=STAGES):
        here = tile * ROWS + line
        rows = tl.load(
            x + here.to(tl.int64)[:, None] * STRIDE + columns[None, :],
            mask=(here < n_rows)[:, None] & inside[None, :],
            other=0.0,
        )
        if AFFINE:
            rows = rows * factor[None, :] + addend[None, :]
        squares = tl.sum(rows * rows, axis=1)
        inverse = tl.rsqrt(tl.where(squares > 0, squares, 1.0))
        unit = rows * inverse[:, None]
        high = unit.to(tl.float16)
        low = ((unit - high.to(tl.float32)) * 2048.0).to(tl.float16)
        small = tl.dot(high, z2)
        small = tl.dot(low, z1, small)
        scores = tl.dot(high, z1) + small * (1.0 / 2048.0)
        length = squares * inverse
        if BOUND == 1:
            length = tl.minimum(length, 1.0)
        elif BOUND == 2:
            length = tl.where(squares > 0, 1.0, 0.0)
        else:
            largest = tl.maximum(tl.max(length, axis=0), 1e-30)
        if AFFINE:  # there the rows beyond the last are not zero
            length = tl.where(here < n_rows, length, 0.0)
        scores = scores * length[:, None]
        if CENTER:
            scores = tl.where((here < n_rows)[:, None], scores - of_center[None, :], 0.0)
            total += tl.sum(scores, axis=0).to(sums)
        if BOUND == 0:
            length = length / largest / largest
        weights = scores * length[:, None]
        w1 = weights.to(tl.float16)
        w2 = ((weights - w1.to(tl.float32)) * 2048.0).to(tl.float16)
        small = tl.dot(tl.trans(w2), high)
        small = tl.dot(tl.trans(w1), low, small)
        part = tl.dot(tl.trans(w1), high) + small * (1.0 / 2048.0)
        if BOUND == 0:
            part = part * (largest * largest)
        result += part.to(sums)
    line_of_sums = (program * R + rank).to(tl.int64) * (D + 1)
    tl.store(out + line_of_sums[:, None] + columns[None, :], result, mask=inside[None, :])
    tl.store(out + line_of_sums + D, total)
