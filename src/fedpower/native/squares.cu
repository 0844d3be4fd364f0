/* Sums of bounded rows in whole numbers on the tensor cores of an NVIDIA GPU, in one pass over the rows.

   What becomes of a row is told in data/lattice_rows.py; data/device_bytes.py compiles this for one width, one
   type of values and one treatment, and puts the sums together.

   A whole number z, at most 2^20 in size, plus 2^22 is three bytes: z + 2^22 = 2^16 a + 2^8 b + c. The tensor
   cores multiply bytes and add in 32-bit integers, exactly. Products of equal weight 2^(8w) go into one sum, w =
   0 to 4, and only tiles on and below the diagonal are made. A sum grows by less than 2^17 a row, so that
   2^13 rows are added up before it is moved to 64 bits.

   A block of warps works through tiles of eight or sixteen rows a warp. A warp first bounds its rows, some lanes
   each, and then makes words of them: a lane has two columns of every fourth block of sixteen. Four bytes of one
   column in four rows are a word, of which the tensor cores take four for the left factor (two columns, two
   lots of rows) and two for the right one (one column). Both are laid out for one load each. While some warps
   convert the next tile, others multiply this one.

   Set from outside: WIDTH, the columns; NARROW, 1 for float32 rows and 0 for float64; CENTER and GAIN, 1 where rows are
   centred and scaled first; NORMALIZE, 1 where every row is brought to the same norm; CHUNK, the bytes that all
   rows begin at a multiple of and are long, at most 16; STRIDE, the values between rows; WARPS, of a block; BUFFERS,
   the tiles of words in shared memory, 1 or 2; AT_ONCE, the blocks that a multiprocessor has room for; OFFSET,
   SHIFT and CUT of data/lattice_rows.py. */

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;

#define BLOCKS ((WIDTH + 15) / 16)
#define GROUPS ((BLOCKS + 3) / 4) /* of four blocks of sixteen columns */
#define OF_WARP (GROUPS > 1 ? 8 : 16)  /* rows of a tile that a warp converts */
#define LANES (32 / OF_WARP)           /* that share a row as it is bounded */
#define CHUNKS 8                       /* of four values that each of them has */
#define ROWS (OF_WARP * WARPS)         /* of a tile */
#define STEPS (ROWS / 32) /* of 32 rows, which are multiplied together */
#define SQUARES (BLOCKS * (BLOCKS + 1) / 2) /* of 16 x 16 sums, on and below the diagonal */
#define REST (SQUARES % WARPS)
#define FULL (SQUARES / WARPS + (REST > WARPS / 2)) /* that a warp has */
#define HALF (REST > 0 && REST <= WARPS / 2)        /* whether it has half of another one beside them */
#define OWN (2 * FULL + HALF)                       /* tiles of 16 x 8 sums */
#define WEIGHTS 5
#define PLAIN (NARROW && !CENTER && !GAIN)
#define KEPT (PLAIN && GROUPS == 1) /* whether there are registers for the values between two looks at them */
#define BULK (CHUNK == 16 && __CUDA_ARCH__ >= 900)
#define FLUSH ((1 << 13) / ROWS) /* tiles of rows before sums are moved to 64 bits */
#define REACH 24                 /* twice the steps of float64 that a sum of squares may be off by */
#define ALL 0xffffffffu

#if BULK && STRIDE == WIDTH
#define PITCH WIDTH /* values between staged rows: eight of them are one copy */
#else
#define PITCH (64 * GROUPS)
#endif
#define MASKED (PITCH < 64 * GROUPS) /* whether other rows stand beyond the last column */
#define LINE (128 * GROUPS + 8)      /* words between those of other lots of rows, which lie in other banks */
#define LIMB (STEPS * 8 * LINE)      /* words of a tile's bytes of one weight */
#define RIGHT (4 * LINE)             /* where the words of the right factor begin */

#if NARROW
typedef float value;
typedef float2 values;
#else
typedef double value;
typedef double2 values;
#endif
#if PLAIN
typedef float scale;
#define BIAS 0x4b400000u /* the bits of 1.5 * 2^23; the last three bytes are 2^22 */
#else
typedef double scale;
#define BIAS 0x00400000u
#endif

struct rule { /* as LatticeRows.numbers has them */
    double limit, longer, target, factor, smallest, largest, most;
};

static __device__ __forceinline__ u32 shared_at(const void *p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ double cut(double x)
{
    return __longlong_as_double(__double_as_longlong(x) & ~((1LL << CUT) - 1));
}

/* Return target / sqrt(squares), each rounded once, and cut. */
static __device__ __noinline__ double slowly(double target, double squares) { return cut(target / sqrt(squares)); }

/* Return the same: a few digits more than are kept are found quickly, and nearly always tell. */
static __device__ __forceinline__ double brought(double target, double squares)
{
    double root;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(root) : "d"(squares));
    const double half = 0.5 * squares;
    root = root * (1.5 - half * root * root);
    root = root * (1.5 - half * root * root); /* to a relative 2^-40 and better */
    const double found = target * root, low = cut(found * (1 - 0x1p-40)), high = cut(found * (1 + 0x1p-40));
    return low == high ? low : slowly(target, squares);
}

/* A lane's columns as words are made: 2 * (lane % 8) and the next, of block lane / 8 of each group. */
static __device__ __forceinline__ int first_column(int lane) { return 16 * (lane >> 3) + 2 * (lane & 7); }

/* Some lanes have one row as it is bounded, each four columns in turn, in an order without bank conflicts. */
static __device__ __forceinline__ int row_of(int lane) { return lane / LANES; }
static __device__ __forceinline__ int column_of(int k, int lane)
{
    return LANES == 4 ? 16 * (k ^ (row_of(lane) & 1)) + 4 * (lane & 3) : 8 * (k ^ (row_of(lane) & 7)) + 4 * (lane & 1);
}

struct four { value v[4]; };

static __device__ __forceinline__ four quarter(const value *row, int k, int lane)
{
    const int column = column_of(k, lane);
    four found = *(const four *)__builtin_assume_aligned(row + column, 16);
    if (MASKED && (LANES == 2 || 16 * (k | 1) + 16 > WIDTH))
#pragma unroll
        for (int j = 0; j < 4; j++)
            found.v[j] = column + j < WIDTH ? found.v[j] : (value)0;
    return found;
}

template <typename T> static __device__ __forceinline__ T added(T mine)
{
    if (LANES == 4)
        mine += __shfl_xor_sync(ALL, mine, 2);
    return mine + __shfl_xor_sync(ALL, mine, 1);
}

#if PLAIN
struct both { double high, low; };

static __device__ both exact_sum(both s, double x, double rest)
{
    double sum = __dadd_rn(s.high, x), back = __dsub_rn(sum, s.high);
    double lost = __dadd_rn(__dsub_rn(s.high, __dsub_rn(sum, back)), __dsub_rn(x, back));
    both found;
    lost = __dadd_rn(__dadd_rn(lost, s.low), rest);
    found.high = __dadd_rn(sum, lost);
    found.low = __dsub_rn(lost, __dsub_rn(found.high, sum));
    return found;
}

/* Return how far a row's sum of squares is above a number, to 2^-90 of itself or so: squares of float32 are exact. */
static __device__ __noinline__ double above(const value *row, int lane, double number)
{
    both s = {0.0, 0.0};
    for (int k = 0; k < CHUNKS; k++) {
        const four found = quarter(row, k, lane);
        for (int j = 0; j < 4; j++)
            s = exact_sum(s, (double)found.v[j] * found.v[j], 0.0);
    }
    for (int far = LANES / 2; far; far >>= 1) {
        double high = __shfl_xor_sync(ALL, s.high, far), low = __shfl_xor_sync(ALL, s.low, far);
        s = exact_sum(s, high, low);
    }
    return __dadd_rn(__dsub_rn(s.high, number), s.low);
}
#endif

/* Return a value as it is before it is bounded. */
#if PLAIN
static __device__ __forceinline__ value moved(value v, const double *, int) { return v; }
#else
static __device__ __forceinline__ double moved(value v, const double *affine, int column)
{
    double x = v;
#if CENTER
    x = __dsub_rn(x, affine[column]);
#endif
#if GAIN
    x = __dmul_rn(x, affine[64 * GROUPS + column]);
#endif
    return x;
}
#endif

/* Return the whole number of a moved value, plus BIAS. */
static __device__ __forceinline__ u32 whole(scale v, scale factor)
{
#if PLAIN
    return __float_as_uint(__fmaf_rn(v, factor, 12582912.0f)); /* 1.5 * 2^23 */
#else
    return (u32)__double2loint(__dadd_rn(__dmul_rn(v, factor), 6755399441055744.0)) + BIAS; /* 1.5 * 2^52 */
#endif
}

/* Return a whole number, plus BIAS, in float32, which holds it. */
static __device__ __forceinline__ float in_float(u32 biased)
{
#if PLAIN
    return __uint_as_float(biased) - 12582912.0f;
#else
    return (float)(int)(biased - BIAS);
#endif
}

/* Leave a row to the processor if it is `there`, and put zeros for its staged values. */
static __device__ __noinline__ void leave(bool there, value *staged, int lane, int number, int *left, int *counts)
{
    if (there && lane % LANES == 0)
        left[atomicAdd(counts, 1)] = number;
    for (int k = 0; k < CHUNKS; k++)
        for (int j = 0; j < 4; j++)
            if (!MASKED || column_of(k, lane) + j < WIDTH)
                staged[column_of(k, lane) + j] = (value)0;
#if BULK
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* before other rows are copied there */
#endif
}

/* Return whether a row's integers are longer than they may be, exactly. */
static __device__ __noinline__ bool too_long(const value *row, const double *affine, scale factor, int lane, double most)
{
    i64 squares = 0;
    for (int k = 0; k < CHUNKS; k++) {
        const four found = quarter(row, k, lane);
        for (int j = 0; j < 4; j++) {
            const i64 z = (int)(whole(moved(found.v[j], affine, column_of(k, lane) + j), factor) - BIAS);
            squares += z * z;
        }
    }
    return (double)added(squares) > most;
}

/* Put the words of a column's four numbers, lowest bytes first. */
static __device__ __forceinline__ void pack(const u32 z[4], u32 words[3])
{
    const u32 early = __byte_perm(z[0], z[1], 0x5140), late = __byte_perm(z[2], z[3], 0x5140);
    words[0] = __byte_perm(early, late, 0x5410);
    words[1] = __byte_perm(early, late, 0x7632);
    words[2] = __byte_perm(__byte_perm(z[0], z[1], 0x0062), __byte_perm(z[2], z[3], 0x0062), 0x5410);
}

struct tally {
    int *left, *counts; /* rows left to the processor; how many of them, and of clipped ones */
    int n_clipped;
};

/* Return what a lane's row is multiplied by: 0, and zeros are staged for it, where that is left to the processor. */
static __device__ __forceinline__ scale factor_of(value *row, const double *affine, int lane, int number, bool there,
                                                  const rule &by, tally &said)
{
    double s[4] = {0.0, 0.0, 0.0, 0.0};
#if KEPT
    four kept[CHUNKS];
#endif
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const four found = quarter(row, k, lane);
#if KEPT
        kept[k] = found;
#endif
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const double x = moved(found.v[j], affine, column_of(k, lane) + j);
            s[j] = fma(x, x, s[j]);
        }
    }
    const double squares = added((s[0] + s[1]) + (s[2] + s[3]));
    /* The cell in which the sum is, rounded as it is, and whether another order of summation might leave it. */
    const i64 bits = __double_as_longlong(squares) + OFFSET;
    const u32 within = (u32)bits & ((1u << SHIFT) - 1);
    i64 next = (bits | ((1 << SHIFT) - 1)) + 1;
    const bool usual = squares >= by.smallest && squares <= by.largest;
    const bool open = usual && within - REACH > (1u << SHIFT) - 2 * REACH;
    bool settled = squares == 0.0 || (usual && !open);
#if PLAIN
    if (__any_sync(ALL, open)) {
        const i64 edge = next - (within < (1u << (SHIFT - 1)) ? 1 << SHIFT : 0);
        const double end = __longlong_as_double(edge - OFFSET), far = above(row, lane, end);
        if (open && fabs(far) > 0x1p-80 * end) {
            next = edge + (far > 0 ? 1 << SHIFT : 0);
            settled = true;
        }
    }
#endif
    const double end = __longlong_as_double(next - OFFSET);
#if NORMALIZE
    const bool far_out = usual;
#else
    const bool far_out = usual && end > by.limit;
    settled = settled || (usual && squares < by.limit / 2);
#endif
    double factor = by.factor;
    if (far_out)
        factor = brought(by.target, end);
    settled = settled && there && factor <= 1e38 && factor >= 1e-36; /* as a float, and far from its ends */
    const scale found = settled ? (scale)factor : (scale)0;
    float q[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
#if KEPT
        const four again = kept[k];
#else
        const four again = quarter(row, k, lane);
#endif
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float z = in_float(whole(moved(again.v[j], affine, column_of(k, lane) + j), found));
            q[j] = __fmaf_rn(z, z, q[j]);
        }
    }
    /* In float32 a sum of squares is off by less than a relative 2^-20; few rows are so near the most. */
    const bool near = !(added((q[0] + q[1]) + (q[2] + q[3])) <= (float)(by.most * (1 - 0x1p-20)));
    if (__any_sync(ALL, near && settled) && too_long(row, affine, found, lane, by.most))
        settled = false;
    if (!settled)
        leave(there, row, lane, number, said.left, said.counts);
#if !NORMALIZE
    said.n_clipped += settled && far_out && end > by.longer && lane % LANES == 0;
#endif
    return settled ? found : (scale)0;
}

/* Put the words of a warp's rows, which are staged, where they are multiplied from: `to`, and past RIGHT. */
static __device__ __forceinline__ void convert(value *rows, const double *affine, scale *factors, u32 *to, int lane,
                                               int first, int n_rows, const rule &by, u32 totals[2 * GROUPS], tally &said)
{
    const int number = first + row_of(lane), column = first_column(lane);
    const scale mine = factor_of(rows + row_of(lane) * PITCH, affine, lane, number, number < n_rows, by, said);
    if (lane % LANES == 0)
        factors[row_of(lane)] = mine;
    __syncwarp();
#pragma unroll
    for (int set = 0; set < OF_WARP / 8; set++, rows += 8 * PITCH, factors += 8, to += LINE) {
        scale f[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            f[i] = factors[i];
#pragma unroll
        for (int v = 0; v < GROUPS; v++) {
            u32 words[2][2][3]; /* column, lot, weight */
#pragma unroll
            for (int lot = 0; lot < 2; lot++) {
                u32 one[4], other[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int r = 4 * lot + i, at = column + 64 * v;
                    const values two = *(const values *)(rows + r * PITCH + at);
                    one[i] = whole(moved(two.x, affine, at), f[r]);
                    other[i] = whole(moved(two.y, affine, at + 1), f[r]);
                }
                totals[2 * v] += one[0] + one[1] + one[2] + one[3];
                totals[2 * v + 1] += other[0] + other[1] + other[2] + other[3];
                pack(one, words[0][lot]);
                pack(other, words[1][lot]);
            }
#pragma unroll
            for (int p = 0; p < 3; p++) {
                u32 *at = to + p * LIMB + 128 * v;
                *(uint4 *)at = make_uint4(words[0][0][p], words[1][0][p], words[0][1][p], words[1][1][p]);
                *(uint4 *)(at + RIGHT) = make_uint4(words[0][0][p], words[0][1][p], words[1][0][p], words[1][1][p]);
            }
        }
    }
}

static __device__ __forceinline__ void multiply(u32 sum[4], const uint4 &a, const uint2 &b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

static __device__ __forceinline__ void multiply_all(u32 sums[WEIGHTS][4], const uint4 a[3], const uint2 b[3])
{
    multiply(sums[0], a[0], b[0]);
    multiply(sums[1], a[0], b[1]);
    multiply(sums[2], a[0], b[2]);
    multiply(sums[3], a[1], b[2]);
    multiply(sums[4], a[2], b[2]);
    multiply(sums[1], a[1], b[0]);
    multiply(sums[2], a[1], b[1]);
    multiply(sums[3], a[2], b[1]);
    multiply(sums[2], a[2], b[0]);
}

/* Return the row of squares and the square in it that has this number. */
static __device__ __forceinline__ int2 square_at(int number)
{
    int down = 0;
    while (number > down)
        number -= ++down;
    return make_int2(down, number);
}

static __device__ __forceinline__ uint4 four_at(u32 place)
{
    uint4 found;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(place));
    return found;
}

#if HALF
static __device__ __forceinline__ uint2 two_at(u32 place)
{
    uint2 found;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(found.x), "=r"(found.y) : "r"(place));
    return found;
}
#endif

/* Add the products of a tile of rows to a warp's own sums: `count` squares from `at` on, and half of one more. */
static __device__ __forceinline__ void add_products(u32 words, int2 at, int count, int2 half, int side, int lane,
                                                    u32 sums[OWN][WEIGHTS][4])
{
    u32 left = words + 4 * ((lane & 3) * LINE + 4 * (lane >> 2));
#pragma unroll 1
    for (int step = 0; step < STEPS; step++, left += 4 * 8 * LINE) {
        uint4 a[3];
        u32 row = left + 4 * 32 * at.x, column = left + 4 * (RIGHT + 32 * at.y), past = row + 4 * (RIGHT + 32);
#pragma unroll
        for (int own = 0; own < FULL; own++) {
            if (REST > WARPS / 2 && own >= count)
                break;
            if (own == 0 || column == past) {
                if (own) {
                    row += 4 * 32;
                    past += 4 * 32;
                    column = left + 4 * RIGHT;
                }
#pragma unroll
                for (int p = 0; p < 3; p++)
                    a[p] = four_at(row + 4 * p * LIMB);
            }
            uint2 b[3], c[3];
#pragma unroll
            for (int p = 0; p < 3; p++) {
                const uint4 both = four_at(column + 4 * p * LIMB);
                b[p] = make_uint2(both.x, both.y);
                c[p] = make_uint2(both.z, both.w);
            }
            multiply_all(sums[2 * own], a, b);
            multiply_all(sums[2 * own + 1], a, c);
            column += 4 * 32;
        }
#if HALF
        if (half.x < BLOCKS) {
            uint2 b[3];
#pragma unroll
            for (int p = 0; p < 3; p++) {
                a[p] = four_at(left + 4 * (32 * half.x + p * LIMB));
                b[p] = two_at(left + 4 * (RIGHT + 32 * half.y + 2 * side + p * LIMB));
            }
            multiply_all(sums[2 * FULL], a, b);
        }
#endif
    }
}

/* Ask for a warp's rows of a tile; those beyond the last are not read. */
static __device__ __forceinline__ void ask(value *stage, u64 *arrival, const value *x, int first, int n_rows, int lane)
{
#if BULK
    const int there = min(max(n_rows - first, 0), OF_WARP), bytes = WIDTH * (int)sizeof(value);
    if (lane == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_at(arrival)), "r"(there * bytes)
                     : "memory");
        const int copies = STRIDE == WIDTH ? there > 0 : there, each = STRIDE == WIDTH ? there * bytes : bytes;
        for (int i = 0; i < copies; i++)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_at(stage + i * PITCH)),
                "l"(x + (i64)(first + i) * STRIDE), "r"(each), "r"(shared_at(arrival))
                : "memory");
    }
#else
    const int each = CHUNK / (int)sizeof(value), across = WIDTH / each;
    for (int part = lane; part < OF_WARP * across; part += 32) {
        const int i = part / across, j = part % across * each;
        if (first + i < n_rows)
#if CHUNK == 16
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(stage + i * PITCH + j)),
                         "l"(x + (i64)(first + i) * STRIDE + j)
                         : "memory");
#else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_at(stage + i * PITCH + j)),
                         "l"(x + (i64)(first + i) * STRIDE + j), "n"(CHUNK)
                         : "memory");
#endif
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Wait for the rows that were asked for. */
static __device__ __forceinline__ void await(u64 *arrival, u32 phase)
{
#if BULK
    asm volatile("{\n\t.reg .pred done;\n"
                 "again:\n\tmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t@!done bra again;\n}" ::"r"(
                     shared_at(arrival)),
                 "r"(phase)
                 : "memory");
#else
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
#endif
}

/* Add up rows: `squares` has, of each block, OWN x WEIGHTS x 4 sums of each thread, `totals` 2 GROUPS, both zeros at first. */
extern "C" __global__ void __launch_bounds__(32 * WARPS, AT_ONCE)
add_rows(const value *x, const double *columns, i64 *squares, i64 *totals, int *left, int *counts, int n_rows,
         double limit, double longer, double target, double factor, double smallest,
         double largest, double most)
{
    extern __shared__ __align__(16) char memory[];
    u64 *arrivals = (u64 *)memory; /* of each warp's rows */
    scale *factors = (scale *)(arrivals + WARPS); /* of each row of a tile */
    double *affine = (double *)(factors + ROWS);
    u32 *words = (u32 *)(affine + (CENTER || GAIN ? 2 * 64 * GROUPS : 0));
    value *stage = (value *)(words + BUFFERS * 3 * LIMB);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const rule by = {limit, longer, target, factor, smallest, largest, most};
    /* Columns beyond the last are zeros and stay so. */
    for (int i = threadIdx.x; i < ROWS * PITCH + 64; i += 32 * WARPS)
        stage[i] = (value)0;
    for (int i = threadIdx.x; (CENTER || GAIN) && i < 2 * 64 * GROUPS; i += 32 * WARPS)
        affine[i] = i % (64 * GROUPS) < WIDTH ? columns[i / (64 * GROUPS) * WIDTH + i % (64 * GROUPS)] : 0.0;
#if BULK
    if (threadIdx.x < WARPS)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_at(arrivals + threadIdx.x)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();

    const int2 at = square_at(warp * FULL), half = square_at(WARPS * FULL + (warp >> 1));
    const int count = min(FULL, max(0, SQUARES - warp * FULL));
    u32 sums[OWN][WEIGHTS][4], own_totals[2 * GROUPS];
#pragma unroll
    for (int i = 0; i < OWN * WEIGHTS * 4; i++)
        (&sums[0][0][0])[i] = 0;
#pragma unroll
    for (int j = 0; j < 2 * GROUPS; j++)
        own_totals[j] = 0;
    tally said = {left, counts, 0};
    squares += (i64)blockIdx.x * (OWN * WEIGHTS * 4 * 32 * WARPS) + threadIdx.x;
    totals += (i64)blockIdx.x * (2 * GROUPS * 32 * WARPS) + threadIdx.x;

    const int n_tiles = (n_rows + ROWS - 1) / ROWS, apart = gridDim.x;
    /* A warp's words: eight rows are a line, four lines a step. */
    const int line = warp * (OF_WARP / 8);
    u32 *own_words = words + ((line >> 2) * 8 + (line & 3)) * LINE + 4 * (lane & 7) + 32 * (lane >> 3);
    value *own_stage = stage + OF_WARP * warp * PITCH;
    int flushed = 0, turn = 0;
    ask(own_stage, arrivals + warp, x, blockIdx.x * ROWS + OF_WARP * warp, n_rows, lane);
    /* In turn t tile t is converted and, where there are two buffers, tile t - 1 multiplied. */
    for (int tile = blockIdx.x; tile < n_tiles + (BUFFERS - 1) * apart; tile += apart, turn++) {
#pragma unroll 1
        for (int part = 0; part < 2; part++) {
            if (part == (BUFFERS == 2 ? warp >> 2 & 1 : 0)) {
                if (tile < n_tiles) {
                    await(arrivals + warp, turn & 1);
                    convert(own_stage, affine, factors + OF_WARP * warp,
                            own_words + (BUFFERS == 2 ? (turn & 1) * 3 * LIMB : 0), lane, tile * ROWS + OF_WARP * warp, n_rows,
                            by, own_totals, said);
                    __syncwarp();
                    ask(own_stage, arrivals + warp, x, min(tile + apart, n_tiles) * ROWS + OF_WARP * warp, n_rows, lane);
                }
                if (BUFFERS == 1)
                    __syncthreads();
            } else if (turn || BUFFERS == 1) {
                add_products(shared_at(words) + (BUFFERS == 2 ? 4 * (turn - 1 & 1) * 3 * LIMB : 0), at, count, half, warp & 1, lane, sums);
            }
        }
        __syncthreads();
        const bool last = tile + apart >= n_tiles + (BUFFERS - 1) * apart;
        if (turn % FLUSH == FLUSH - 1 || last) {
            /* In the turn that only multiplies nothing was converted. */
            const u32 converted = OF_WARP * (turn + (tile < n_tiles) - flushed);
            flushed = turn + 1;
#pragma unroll
            for (int i = 0; i < OWN * WEIGHTS * 4; i++) {
                u32 *sum = &sums[0][0][0] + i;
                squares[i * 32 * WARPS] += *sum;
                *sum = 0;
            }
#pragma unroll
            for (int j = 0; j < 2 * GROUPS; j++) {
                totals[j * 32 * WARPS] += (int)(own_totals[j] - converted * BIAS);
                own_totals[j] = 0;
            }
        }
    }
    if (said.n_clipped)
        atomicAdd(counts + 1, said.n_clipped);
}
