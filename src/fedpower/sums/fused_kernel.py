"""The fused kernel in Triton: rows bounded and multiplied twice while they are on the chip."""

# ruff: noqa: RUF005, SIM108 - Triton unpacks no tuples, and settles what is known before it compiles

import triton
import triton.language as tl


@triton.jit
def sum_bounded_products(  # noqa: PLR0912, PLR0915, PLR0917 - one pass, one body
    x,  # s×d float32 rows, STRIDE apart
    z,  # (d + 1)×R float32: the basis, its columns of norm 1, and centerᵀZ
    affine,  # 2×d float32: gain and offset, rows being x·gain + offset before they are bounded
    scores_of,  # s×R float32, zeros: the scores xᵀZ of rows shared out; s up to the end of a tile
    squares_of,  # s float32, zeros: their ‖x‖²
    done,  # tiles + 2 int32, zeros: shares added to the scores of each tile, and programs started
    out,  # groups×R×(d + 1) float32: 2²⁹ Σ φu wᵀ of each group's rows, and the sum of their scores
    n_rows,
    n_groups,
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,  # rows of a tile
    BLOCK: tl.constexpr,  # columns that are multiplied at once
    BLOCKS: tl.constexpr,  # blocks of a share
    SHARES: tl.constexpr,
    R: tl.constexpr,  # columns of the basis, filled up to 16
    AFFINE: tl.constexpr,  # whether gain and offset are there
    BOUND: tl.constexpr,  # 0: rows as they are, 1: clipped to norm 1, 2: scaled to norm 1
    CENTER: tl.constexpr,  # whether centerᵀZ is there
    AHEAD: tl.constexpr,  # whether the next tile is asked for before this one is multiplied
    SCORE: tl.constexpr,  # whether this launch adds up the scores of rows shared out
    SUM: tl.constexpr,  # whether it makes the sums
):
    """Write Σ (y − c)(yᵀZ − cᵀZ) over each group's rows, less the part −c(…) that the caller adds."""
    place = tl.program_id(0)
    if SHARES > 1:
        place = tl.atomic_add(done + tl.cdiv(n_rows, ROWS) + (0 if SCORE else 1), 1)
    group = place // SHARES
    share = place % SHARES
    first = share * (BLOCKS * BLOCK)
    column = first + tl.arange(0, BLOCK)
    rank = tl.arange(0, R)
    line = tl.arange(0, ROWS)
    n_tiles = tl.cdiv(n_rows, ROWS)
    z1 = ()
    z2 = ()
    gain = ()
    offset = ()
    for k in tl.static_range(BLOCKS):
        here = column + k * BLOCK
        entries = z + here[:, None] * R + rank[None, :]
        one, two = halves(tl.load(entries, mask=(here < D)[:, None], other=0.0) * 32768.0)
        z1 = z1 + (one,)
        z2 = z2 + (two,)
        if AFFINE:
            gain = gain + (tl.load(affine + here, mask=here < D, other=0.0),)
            offset = offset + (tl.load(affine + D + here, mask=here < D, other=0.0),)
    if CENTER:
        of_center = tl.load(z + D * R + rank)
    total = tl.zeros([R], dtype=tl.float32)
    sums = (tl.zeros([R, BLOCK], dtype=tl.float32),) * BLOCKS
    if AHEAD:
        coming = _blocks_of(x, group * ROWS + line, n_rows, column, D, STRIDE, BLOCK, BLOCKS)
    for tile in tl.range(group, n_tiles, n_groups, num_stages=1):
        real = tile * ROWS + line < n_rows
        if AHEAD:
            rows = coming
        else:
            rows = _blocks_of(x, tile * ROWS + line, n_rows, column, D, STRIDE, BLOCK, BLOCKS)
        if AFFINE:
            moved = ()
            for k in tl.static_range(BLOCKS):
                value = rows[k] * gain[k][None, :] + offset[k][None, :]
                moved = moved + (tl.where(real[:, None], value, 0.0),)
            rows = moved
        each = rows[0] * rows[0]
        for k in tl.static_range(1, BLOCKS):
            each += rows[k] * rows[k]
        squares = tl.sum(each, axis=1)
        inverse = tl.rsqrt(tl.where(squares > 0, squares, 1.0))
        length = squares * inverse
        high = ()
        low = ()
        for k in tl.static_range(BLOCKS):
            upper, lower = halves(rows[k] * (inverse * 32768.0)[:, None])
            high = high + (upper,)
            low = low + (lower,)
        if AHEAD:
            after = (tile + n_groups) * ROWS + line
            coming = _blocks_of(x, after, n_rows, column, D, STRIDE, BLOCK, BLOCKS)
        scores = tl.zeros([ROWS, R], dtype=tl.float32)
        if SCORE:
            small = tl.zeros([ROWS, R], dtype=tl.float32)
            for k in tl.static_range(BLOCKS):
                small = tl.dot(low[k], z1[k], small)
                small = tl.dot(high[k], z2[k], small)
                scores = tl.dot(high[k], z1[k], scores)
            scores = (scores + small) * (length * 2.0**-30)[:, None]
        if SHARES > 1:
            spot = (tile * ROWS + line).to(tl.int64)
            spots = scores_of + spot[:, None] * R + rank[None, :]
            if SCORE:
                tl.atomic_add(spots, scores, sem="relaxed")
                tl.atomic_add(squares_of + spot, squares, sem="relaxed")
                tl.debug_barrier()
                tl.atomic_add(done + tile, 1, sem="release")
            if SUM:
                while tl.atomic_add(done + tile, 0, sem="acquire") < SHARES:
                    pass
                scores = tl.load(spots, cache_modifier=".cg")
                squares = tl.load(squares_of + spot, cache_modifier=".cg")
                inverse = tl.rsqrt(tl.where(squares > 0, squares, 1.0))
        if SUM:
            if BOUND == 0:
                largest = tl.maximum(tl.max(squares * inverse, axis=0), 1e-30)
                factor = tl.zeros([ROWS], dtype=tl.float32) + 1.0 / largest
            elif BOUND == 1:
                factor = tl.minimum(inverse, 1.0)
            else:
                factor = tl.where(squares > 0, inverse, 0.0)
            scores = scores * factor[:, None]
            if CENTER:
                scores = tl.where(real[:, None], scores - of_center[None, :], 0.0)
                total += tl.sum(scores, axis=0)
            upper_w, lower_w = halves(scores * (factor * length * 16384.0)[:, None])
            w1 = tl.trans(upper_w)
            w2 = tl.trans(lower_w)
            added = ()
            for k in tl.static_range(BLOCKS):
                part = tl.dot(w2, high[k])
                part = tl.dot(w1, low[k], part)
                part = tl.dot(w1, high[k], part)
                if BOUND == 0:
                    part = part * (largest * largest)
                added = added + (sums[k] + part,)
            sums = added
    if SUM:
        lines = (group * R + rank).to(tl.int64) * (D + 1)
        for k in tl.static_range(BLOCKS):
            here = column + k * BLOCK
            tl.store(out + lines[:, None] + here[None, :], sums[k], mask=(here < D)[None, :])
        tl.store(out + lines + D, total, mask=share + 0 * rank == 0)


@triton.jit
def _blocks_of(  # noqa: PLR0917 - what a kernel is given
    x, rows, n_rows, column, D: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    """Return a share's columns of some rows, block by block; beyond the last row and column, zeros."""
    lines = x + rows.to(tl.int64)[:, None] * STRIDE
    real = (rows < n_rows)[:, None]
    found = ()
    for k in tl.static_range(BLOCKS):
        here = column + k * BLOCK
        if D % (BLOCK * BLOCKS) == 0:
            inside = real
        else:
            inside = real & (here < D)[None, :]
        found = found + (tl.load(lines + here[None, :], mask=inside, other=0.0),)
    return found


@triton.jit
def halves(values):
    """Return float16 numbers that are nearest to the values, and to what those leave."""
    high = values.to(tl.float16)
    return high, (values - high.to(tl.float32)).to(tl.float16)
