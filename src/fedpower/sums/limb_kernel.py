"""Rows as whole numbers in two float16 limbs, and their products on the tensor cores, exactly."""

# ruff: noqa: SIM102, SIM108 - Triton settles what is known before it compiles, and has no short `and`

import triton
import triton.language as tl


@triton.jit
def _each_row(numbers):
    """Return a number for each row in the shape of a tile, in the layout that its sums leave behind."""
    return tl.expand_dims(tl.expand_dims(numbers, 1), 1)


@triton.jit
def put_on_lattice(  # noqa: PLR0915, PLR0917 - one pass, one body
    x,  # n×D rows in float32 or float64, STRIDE apart
    affine,  # 2×D float64: centre and gain, a row being (x − centre)·gain before it is bounded
    rule,  # 9 float64: `LatticeRows.numbers`
    limbs,  # n×(2·HALF) float16: h in the first half, l in the second; 0 for rows left to the processor
    states,  # n int8: 0 settled, 1 settled and clipped, 2 left to the processor
    totals,  # programs×D int64: each program's sums of the integers, of at most 2,047 tiles
    n_rows,
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    HALF: tl.constexpr,
    PIECES: tl.constexpr,  # pieces of a row, which one thread has all of
    PIECE: tl.constexpr,  # columns of a piece
    ROWS: tl.constexpr,  # rows of a tile
    CENTER: tl.constexpr,
    GAIN: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SHORT_IS_ZERO: tl.constexpr,  # whether rows with tiny squares are nothing beside the bound
    OFFSET: tl.constexpr,
    SHIFT: tl.constexpr,
    CUT: tl.constexpr,  # bits that a factor does without
    LIMB: tl.constexpr,  # bits of the lower limb
):
    """Write the limbs of every row and whether they are settled, and add up those that are."""
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
    # Threads are laid along the columns of a piece and then along rows: few of them share a row, and
    # those few alone repeat its square root and division.
    across = PIECE * tl.arange(0, PIECES)[:, None] + tl.arange(0, PIECE)[None, :]
    column = across[None, :, :]
    inside = column < D
    if CENTER:
        center = tl.load(affine + column, mask=inside, other=0.0)
    if GAIN:
        gain = tl.load(affine + D + column, mask=inside, other=0.0)
    sums = tl.zeros([ROWS, PIECES, PIECE], dtype=tl.int32)
    for tile in tl.range(program, tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        here = (row < n_rows)[:, None, None]
        place = row.to(tl.int64)[:, None, None]
        values = tl.load(x + place * STRIDE + column, mask=here & inside, other=0.0).to(tl.float64)
        if CENTER:
            values = values - center
        if GAIN:
            values = values * gain
        squares = tl.sum(tl.sum(values * values, axis=1), axis=1)
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
        brought = (target / tl.sqrt(rounded)).to(tl.int64, bitcast=True) >> CUT << CUT
        factors = tl.where(long & usual, brought.to(tl.float64, bitcast=True), factor)
        shifted = values * _each_row(factors) + 6755399441055744.0  # 1.5·2⁵²: to a whole number
        values = shifted - 6755399441055744.0
        settled = settled & (tl.sum(tl.sum(values * values, axis=1), axis=1) <= most)
        # The number's low bits are those of the whole number.
        whole = shifted.to(tl.int64, bitcast=True).to(tl.int32)
        whole = tl.where(_each_row(settled & (row < n_rows)), whole, 0)
        sums += whole
        upper = (whole + (1 << (LIMB - 1))) >> LIMB
        lower = whole - (upper << LIMB)
        write = here & (column < HALF)
        out = limbs + place * (2 * HALF) + column
        tl.store(out, upper.to(tl.float32).to(tl.float16), mask=write)
        tl.store(out + HALF, lower.to(tl.float32).to(tl.float16), mask=write)
        if NORMALIZE:
            clipped = 0
        else:
            clipped = (long & (rounded > longer)).to(tl.int32)
        tl.store(states + row, tl.where(settled, clipped, 2).to(tl.int8), mask=row < n_rows)
    tl.store(totals + program.to(tl.int64) * D + across, tl.sum(sums.to(tl.int64), axis=0), mask=across < D)


@triton.jit
def _tile(place, SIDE: tl.constexpr, COUNT: tl.constexpr):
    """Return the first row and column of a tile: the diagonal's, then those above it by columns."""
    row = place
    column = place
    if place >= COUNT:
        row = place - COUNT
        column = 1
        while row >= column:
            row -= column
            column += 1
    return row * SIDE, column * SIDE


@triton.jit
def multiply(  # noqa: PLR0917 - as above
    limbs,  # n×WIDTH float16
    products,  # chunks×tiles×SIDE×SIDE int32: each chunk's Σ w wᵀ, in tiles (`_tile`)
    passed,  # chunks int32, zeros: becomes 1 where a sum may have passed 2²⁴
    n_rows,
    WIDTH: tl.constexpr,
    SIDE: tl.constexpr,
    COUNT: tl.constexpr,  # tiles on the diagonal
    DIAGONAL: tl.constexpr,  # whether those are made, or the others
    ROWS: tl.constexpr,  # rows that are added up in float32
    REPEATS: tl.constexpr,  # how often, in a chunk: at most 127, so that an int32 holds the sum
    STAGES: tl.constexpr,
):
    """Write one tile of one chunk's product."""
    tiles: tl.constexpr = COUNT * (COUNT + 1) // 2
    made: tl.constexpr = COUNT if DIAGONAL else tiles - COUNT
    chunk = tl.program_id(0) // made
    place = tl.program_id(0) % made
    if not DIAGONAL:
        place += COUNT
    down, right = _tile(place, SIDE, COUNT)
    i = down + tl.arange(0, SIDE)
    j = right + tl.arange(0, SIDE)
    total = tl.zeros([SIDE, SIDE], dtype=tl.int32)
    most = tl.zeros([SIDE], dtype=tl.float32)
    n_here = tl.minimum(n_rows - chunk * (ROWS * REPEATS), ROWS * REPEATS)
    row = tl.arange(0, ROWS)
    start = limbs + (chunk.to(tl.int64) * (ROWS * REPEATS) + row[:, None]) * WIDTH
    for step in tl.range(0, tl.cdiv(n_here, ROWS), num_stages=STAGES):
        here = (step * ROWS + row < n_here)[:, None]
        at = start + step * (ROWS * WIDTH)
        left = tl.load(at + i[None, :], mask=here & (i < WIDTH)[None, :], other=0.0)
        if DIAGONAL:
            over = left
        else:
            over = tl.load(at + j[None, :], mask=here & (j < WIDTH)[None, :], other=0.0)
        found = tl.dot(tl.trans(left), over)
        if DIAGONAL:  # nothing is larger than what is on the diagonal
            most = tl.maximum(most, tl.max(found, axis=1))
        total += found.to(tl.int32)
    inside = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    out = products + (chunk.to(tl.int64) * tiles + place) * (SIDE * SIDE)
    tl.store(out + inside, total)
    if DIAGONAL:
        if tl.max(most) >= 16777216.0:
            tl.store(passed + chunk, 1)


@triton.jit
def multiply_few(  # noqa: PLR0917 - as above
    limbs,
    products,
    passed,
    sums,  # tiles×SIDE×SIDE int64
    n_rows,
    WIDTH: tl.constexpr,
    SIDE: tl.constexpr,
    COUNT: tl.constexpr,
    CHUNK: tl.constexpr,  # rows of a chunk
    FEW: tl.constexpr,  # 16
):
    """Put zeros for chunks in which a sum may have passed 2²⁴, and add their products to ``sums``."""
    tiles: tl.constexpr = COUNT * (COUNT + 1) // 2
    chunk = tl.program_id(0) // tiles
    place = tl.program_id(0) % tiles
    if tl.load(passed + chunk) > 0:
        down, right = _tile(place, SIDE, COUNT)
        i = down + tl.arange(0, SIDE)
        j = right + tl.arange(0, SIDE)
        total = tl.zeros([SIDE, SIDE], dtype=tl.int64)
        row = tl.arange(0, FEW)
        n_here = tl.minimum(n_rows - chunk * CHUNK, CHUNK)
        start = limbs + (chunk.to(tl.int64) * CHUNK + row[:, None]) * WIDTH
        for step in tl.range(0, tl.cdiv(n_here, FEW)):
            here = (step * FEW + row < n_here)[:, None]
            at = start + step * (FEW * WIDTH)
            left = tl.load(at + i[None, :], mask=here & (i < WIDTH)[None, :], other=0.0)
            over = tl.load(at + j[None, :], mask=here & (j < WIDTH)[None, :], other=0.0)
            total += tl.dot(tl.trans(left), over).to(tl.int64)
        inside = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
        out = products + tl.program_id(0).to(tl.int64) * (SIDE * SIDE)
        tl.store(out + inside, tl.zeros([SIDE, SIDE], dtype=tl.int32))
        tl.atomic_add(sums + place * (SIDE * SIDE) + inside, total, sem="relaxed")


@triton.jit
def add_up(products, sums, n_chunks, SIZE: tl.constexpr, PART: tl.constexpr):
    """Add the chunks' products to ``sums``."""
    place = tl.program_id(0) * PART + tl.arange(0, PART)
    at = products + tl.program_id(1).to(tl.int64) * SIZE + place
    total = tl.zeros([PART], dtype=tl.int64)
    for _ in tl.range(tl.program_id(1), n_chunks, tl.num_programs(1)):
        total += tl.load(at).to(tl.int64)
        at += tl.num_programs(1) * SIZE
    tl.atomic_add(sums + place, total, sem="relaxed")
