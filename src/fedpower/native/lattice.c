/* Rows as integers, counts over rows, and noise: loops for which NumPy would read its arrays several times.

   sums/lattice.py, sums/survey.py and privacy/noise.py have NumPy code that does the same, used where this is not
   compiled. Nothing is kept between calls, so that threads may call at the same time. Floating point must be IEEE 754
   without extra precision: the flags in hatch_build.py and the test below make sure of it. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

#if FLT_EVAL_METHOD != 0
#error "double must be computed as double: build with SSE2"
#endif

#define EXPORT __attribute__((visibility("default")))

/* Two values side by side, as SSE2 and Neon have them, at any address. */
typedef double pair __attribute__((vector_size(16)));
typedef int64_t mask __attribute__((vector_size(16)));
typedef pair anywhere __attribute__((aligned(8), may_alias));

static inline pair at(const double *place) { return *(const anywhere *)place; }
static inline void put(double *place, pair values) { *(anywhere *)place = values; }

/* The larger and the smaller of a limit and a value; a NaN stays a NaN. Sums may use fused multiply-add: norms are
   rounded somehow, and sums of integers are exact either way. */
#ifdef __ARM_NEON
#define MULTIPLY_ADD(sum, x, y) ((sum) = (pair)vfmaq_f64((float64x2_t)(sum), (float64x2_t)(x), (float64x2_t)(y)))
#define AT_LEAST(limit, x) ((pair)vmaxq_f64((float64x2_t)(limit), (float64x2_t)(x)))
#define AT_MOST(limit, x) ((pair)vminq_f64((float64x2_t)(limit), (float64x2_t)(x)))
#define TRUNCATE(x) trunc(x)
#else
#define MULTIPLY_ADD(sum, x, y) ((sum) += (x) * (y))
#define CHOOSE(which, x, y) ((pair)(((which) & (mask)(x)) | (~(which) & (mask)(y))))
#define AT_LEAST(limit, x) CHOOSE((mask)((limit) > (x)), limit, x)
#define AT_MOST(limit, x) CHOOSE((mask)((limit) < (x)), limit, x)
#define TRUNCATE(x) ((double)(int32_t)(x)) /* SSE2 has no instruction for doubles */
#endif

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST "unknown"
#endif

/* The source from which this library was built. */
EXPORT const char *fedpower_source(void) { return SOURCE_DIGEST; }

/* ---- Rows ---- */

/* How the columns of a row are moved: (x - center) * gain, then clipped. */
struct columns {
    const double *center, *gain; /* NULL where rows stay as they are */
    const double *low, *high;    /* of moved values; NULL where nothing is clipped */
};

/* How a row is bounded. */
struct rule {
    struct columns columns;
    double bound;  /* on the norm of a row */
    double longer; /* rows beyond it count as clipped */
    double target; /* a little below S, so that no rounding takes a row beyond S */
    int64_t normalize;
};

/* Rows of a block, one after the other. */
struct rows {
    const double *values;
    int64_t count, width;
    const double *sides; /* what each row's S is multiplied by, at most 1; NULL where by 1 */
};

/* Squares between these keep their digits. */
static const double SMALLEST = 1e-280, LARGEST = 1e280;

/* Always in the same order, so that a row's norm does not depend on the rows around it. */
static double sum_of_squares(const double *row, ptrdiff_t width)
{
    pair a = {0}, b = {0}, c = {0}, e = {0}; /* four, so that additions need not wait for each other */
    ptrdiff_t j = 0;
    for (; j + 8 <= width; j += 8) {
        pair p = at(row + j), q = at(row + j + 2), r = at(row + j + 4), s = at(row + j + 6);
        MULTIPLY_ADD(a, p, p), MULTIPLY_ADD(b, q, q), MULTIPLY_ADD(c, r, r), MULTIPLY_ADD(e, s, s);
    }
    for (; j + 2 <= width; j += 2) {
        pair p = at(row + j);
        MULTIPLY_ADD(a, p, p);
    }
    a = (a + b) + (c + e);
    double last = j < width ? row[j] : 0.0;
    return (a[0] + a[1]) + last * last;
}

/* Put the moved values of a row into out. */
static inline void move(const double *restrict row, const struct columns *columns, ptrdiff_t width,
                        double *restrict out)
{
    const double *restrict center = columns->center, *restrict gain = columns->gain;
    const double *restrict low = columns->low, *restrict high = columns->high;
    ptrdiff_t j = 0;
    if (!low) {
        for (; j < width; j++)
            out[j] = (row[j] - center[j]) * gain[j];
        return;
    }
    for (; j + 2 <= width; j += 2) {
        pair value = (at(row + j) - at(center + j)) * at(gain + j);
        put(out + j, AT_MOST(at(high + j), AT_LEAST(at(low + j), value)));
    }
    if (j < width) {
        double value = (row[j] - center[j]) * gain[j];
        value = low[j] > value ? low[j] : value;
        out[j] = high[j] < value ? high[j] : value;
    }
}

/* Put the integers of row i into out, every four of them `apart` from the next; return 1 where it is clipped,
   and -1 where it has a value that is not finite.  moved: room for a row. */
static int put_row(const struct rows *rows, int64_t i, const struct rule *rule, double *moved, double *out,
                   ptrdiff_t apart)
{
    const ptrdiff_t width = rows->width;
    const double *stored = rows->values + i * width, *row = stored;
    if (rule->columns.gain) {
        move(stored, &rule->columns, width, moved);
        row = moved;
    }
    double target = rows->sides ? rows->sides[i] * rule->target : rule->target;
    double bound = rule->bound, longer = rule->longer, squares = sum_of_squares(row, width), norm = bound;
    int clipped = 0;
    if (rule->normalize || !(squares < 0.999 * (bound * bound))) { /* most rows are short, and need no root */
        if (!(squares <= LARGEST) || (rule->normalize && squares < SMALLEST)) {
            double peak = 0.0;
            for (ptrdiff_t j = 0; j < width; j++) {
                if (!isfinite(stored[j]))
                    return -1;
                peak = fabs(row[j]) > peak ? fabs(row[j]) : peak;
            }
            peak = peak > DBL_MAX ? DBL_MAX : peak > 0.0 ? peak : 1.0;
            for (ptrdiff_t j = 0; j < width; j++) /* what left float64 as it was moved is its largest */
                moved[j] = (row[j] > DBL_MAX ? DBL_MAX : row[j] < -DBL_MAX ? -DBL_MAX : row[j]) / peak;
            row = moved, bound /= peak, longer /= peak;
            squares = sum_of_squares(row, width);
        }
        norm = sqrt(squares);
        if (rule->normalize)
            norm = norm > 0.0 ? norm : 1.0;
        else {
            clipped = norm > longer;
            norm = norm > bound ? norm : bound;
        }
    }
    const double factor = target / norm;
    ptrdiff_t j = 0;
    for (; j + 4 <= width; j += 4, out += apart)
        for (int k = 0; k < 4; k++)
            out[k] = TRUNCATE(row[j + k] * factor);
    for (int k = 0; j < width; j++, k++)
        out[k] = TRUNCATE(row[j] * factor);
    return clipped;
}

/* Put the integers of rows into out, row by row; return how many are clipped, or -1 where one is not finite. */
EXPORT int64_t fedpower_lattice_rows(const struct rows *rows, const struct rule *rule, double *moved, double *out)
{
    int64_t n_clipped = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        int clipped = put_row(rows, i, rule, moved, out + i * rows->width, 4);
        if (clipped < 0)
            return -1;
        n_clipped += clipped;
    }
    return n_clipped;
}

#ifdef __ARM_NEON
/* Elsewhere NumPy's BLAS has wider registers than a compiler may assume, and multiplies. */

#define CHUNK 128 /* rows whose integers stay in a core's cache */
#define APART (4 * CHUNK + 8) /* from four columns to the next four; a power of two would share cache lines */

/* Add the products of 4 * PANELS columns (panels from p on) with 4 (panel q) to out, `step` from row to row. */
#define TILE(name, panels)                                                                                   \
    static void name(const double *p, const double *q, ptrdiff_t count, double *out, ptrdiff_t step)         \
    {                                                                                                        \
        float64x2_t sums[4][2 * panels] = {{{0}}};                                                           \
        _Pragma("GCC unroll 4") for (ptrdiff_t k = 0; k < count; k++, p += 4, q += 4)                        \
        {                                                                                                    \
            const float64x2_t one = vld1q_f64(q), two = vld1q_f64(q + 2);                                    \
            _Pragma("GCC unroll 4") for (int j = 0; j < 2 * panels; j++)                                     \
            {                                                                                                \
                const float64x2_t left = vld1q_f64(p + j / 2 * APART + j % 2 * 2);                           \
                sums[0][j] = vfmaq_laneq_f64(sums[0][j], left, one, 0);                                      \
                sums[1][j] = vfmaq_laneq_f64(sums[1][j], left, one, 1);                                      \
                sums[2][j] = vfmaq_laneq_f64(sums[2][j], left, two, 0);                                      \
                sums[3][j] = vfmaq_laneq_f64(sums[3][j], left, two, 1);                                      \
            }                                                                                                \
        }                                                                                                    \
        for (int i = 0; i < 4; i++)                                                                          \
            for (int j = 0; j < 2 * panels; j++)                                                             \
                vst1q_f64(out + i * step + 2 * j, vaddq_f64(vld1q_f64(out + i * step + 2 * j), sums[i][j])); \
    }

TILE(add_tile, 2)
TILE(add_half_tile, 1)

/* Add the sums of a panel's four columns to total. */
static void add_columns(const double *panel, int64_t count, double *total)
{
    pair a = at(total), b = at(total + 2), c = {0}, e = {0};
    int64_t k = 0;
    for (; k + 2 <= count; k += 2, panel += 8)
        a += at(panel), b += at(panel + 2), c += at(panel + 4), e += at(panel + 6);
    if (k < count)
        a += at(panel), b += at(panel + 2);
    put(total, a + c), put(total + 2, b + e);
}

/* Add the integers of rows to total, and their squares to the lower triangle of `squares`, while they are in a
   core's cache; return what fedpower_lattice_rows does.

   exact: rows whose squares a double holds exactly.  scratch: (130 + padded + 2) * padded doubles, padded being
   the width rounded up to 8. */
EXPORT int64_t fedpower_lattice_squares(const struct rows *rows, const struct rule *rule, int64_t exact,
                                        double *scratch, int64_t *total, int64_t *squares)
{
    const int64_t width = rows->width, padded = (width + 7) / 8 * 8, line = 8; /* doubles of a cache line */
    double *panels = scratch, *moved = panels + 130 * padded, *sums = moved + padded, *products = sums + padded;
    int64_t n_clipped = 0;
    memset(scratch, 0, sizeof(double) * (size_t)((132 + padded) * padded));
    for (int64_t start = 0, held = 0; start < rows->count; start += CHUNK) {
        int64_t size = rows->count - start < CHUNK ? rows->count - start : CHUNK;
        for (int64_t k = 0; k < size; k++) {
            int clipped = put_row(rows, start + k, rule, moved, panels + 4 * k, APART);
            if (clipped < 0)
                return -1;
            n_clipped += clipped;
        }
        /* The next rows come from memory meanwhile, a part of them before each column of tiles. */
        int64_t next = (start + size) * width, share = size * width * 4 / padded;
        int64_t last = start + 2 * size < rows->count ? next + size * width : rows->count * width;
        for (int64_t j = 0; j < width; j += 4) {
            for (int64_t stop = next + share; next < stop && next < last; next += line)
                __builtin_prefetch(rows->values + next, 0, 2);
            const double *panel = panels + j / 4 * APART;
            add_columns(panel, size, sums + j);
            int64_t i = 0;
            for (; i < j; i += 8)
                add_tile(panels + i / 4 * APART, panel, size, products + j * padded + i, padded);
            if (i == j)
                add_half_tile(panel, panel, size, products + j * padded + i, padded);
        }
        held += size;
        if (held + CHUNK > exact || start + size == rows->count) {
            for (int64_t j = 0; j < width; j++) {
                total[j] += (int64_t)sums[j];
                for (int64_t i = 0; i <= j; i++)
                    squares[j * width + i] += (int64_t)products[j * padded + i];
            }
            memset(sums, 0, sizeof(double) * (size_t)((1 + padded) * padded));
            held = 0;
        }
    }
    return n_clipped;
}
#endif

/* ---- Counts ---- */

/* For each column, count rows by sign and exponent: counts has n_places for each column, `places` tells which one
   the upper twelve bits of a value belong to. In all of these, a row counts `weights` times; once where it is NULL. */
EXPORT void fedpower_count_octaves(const struct rows *rows, const int64_t *weights, const int16_t *places,
                                   int64_t n_places, int64_t *counts)
{
    for (int64_t i = 0; i < rows->count; i++) {
        const double *row = rows->values + i * rows->width;
        const int64_t weight = weights ? weights[i] : 1;
        int64_t *own = counts;
        for (int64_t j = 0; j < rows->width; j++, own += n_places) {
            uint64_t bits;
            memcpy(&bits, row + j, 8);
            own[places[bits >> 52]] += weight;
        }
    }
}

/* For each column, count rows by the integer part of their moved values, which are clipped from 0 to n_places - 2;
   a NaN belongs to the last place. */
EXPORT void fedpower_count_bins(const struct rows *rows, const int64_t *weights, const struct columns *columns,
                                double *moved, int64_t n_places, int64_t *counts)
{
    for (int64_t i = 0; i < rows->count; i++) {
        const int64_t weight = weights ? weights[i] : 1;
        int64_t *own = counts;
        move(rows->values + i * rows->width, columns, rows->width, moved);
        for (int64_t j = 0; j < rows->width; j++, own += n_places)
            own[moved[j] == moved[j] ? (int32_t)moved[j] : n_places - 1] += weight;
    }
}

/* Values that are not NaN, and 0 in place of those that are. */
#define WHERE_NUMBER(x, values) ((pair)((mask)((x) == (x)) & (mask)(values)))

/* The nearest integers, halves to even, of values below 2^51 in size. */
#define NEAREST(x) (((x) + 0x1.8p52) - 0x1.8p52)

/* For each column, add up the nearest integers of moved values, their squares, and the rows that have a value.
   moved: the width rounded up to 2.  sums: three times as many, all below 2^53: exact. */
EXPORT void fedpower_sum_cells(const struct rows *rows, const int64_t *weights, const struct columns *columns,
                               double *restrict moved, double *restrict sums)
{
    const int64_t width = rows->width, padded = (width + 1) / 2 * 2;
    double *restrict squares = sums + padded, *restrict present = sums + 2 * padded;
    moved[padded - 1] = 0.0;
    for (int64_t i = 0; i < rows->count; i++) {
        const double once = weights ? (double)weights[i] : 1.0;
        const pair weight = {once, once};
        move(rows->values + i * width, columns, width, moved);
        for (int64_t j = 0; j < width; j += 2) {
            pair cells = at(moved + j), value = WHERE_NUMBER(cells, NEAREST(cells)), sum = weight * value;
            put(sums + j, at(sums + j) + sum);
            put(squares + j, at(squares + j) + sum * value);
            put(present + j, at(present + j) + WHERE_NUMBER(cells, weight));
        }
    }
}

/* Count rows by the sum of squares of the nearest integers of their moved values, a NaN being 0: in the place of
   the first of n_edges edges that is no less, or after all of them. */
EXPORT void fedpower_count_norms(const struct rows *rows, const int64_t *weights, const struct columns *columns,
                                 double *moved, const double *edges, int64_t n_edges, int64_t *counts)
{
    for (int64_t i = 0; i < rows->count; i++) {
        move(rows->values + i * rows->width, columns, rows->width, moved);
        for (int64_t j = 0; j < rows->width; j += 2)
            put(moved + j, WHERE_NUMBER(at(moved + j), NEAREST(at(moved + j))));
        double squares = sum_of_squares(moved, rows->width);
        int64_t low = 0, high = n_edges;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (edges[middle] < squares)
                low = middle + 1;
            else
                high = middle;
        }
        counts[low] += weights ? weights[i] : 1;
    }
}

/* ---- Noise ---- */

#define PARTS 13 /* entries of the table of integer parts */

/* Return e^-t - u, or what has its sign and is as far from 0 as need be: most candidates are decided by
   1 - t + t^2/2 - t^3/6 <= e^-t <= 1 - t + t^2/2 - t^3/6 + t^4/24, t >= 0, to far more than rounding. */
static inline double distance_of(double t, double u)
{
    const double sure = 0x1p-30;
    double cubic = 1.0 - t * (1.0 - t * (0.5 - t * (1.0 / 6.0)));
    double least = cubic - u, most = least + t * t * t * t * (1.0 / 24.0);
    if (least > sure)
        return least;
    if (most < -sure)
        return most;
    return exp(-t) - u;
}

/* Put round(scale * |X|) of those of n candidates that are accepted into out and return
   how many these are; -1 where a candidate needs further bits: then the caller decides all.

   parts, fractions, chances: of each candidate, for the integer part, the fraction and the acceptance.
   bits: how many of the upper ones of `parts` count, and of the lower ones for `chances` where these are
   NULL; those of further words would come after them.
   table: upper words of the cumulative probabilities of the integer parts.
   out: room for n. */
EXPORT int64_t fedpower_candidates(const uint64_t *parts, const uint64_t *fractions,
                                   const uint64_t *chances, int64_t n, int32_t bits, uint64_t scale,
                                   const uint64_t table[PARTS], int64_t *out)
{
    const double unit = 0x1p-64;
    /* The rest of a chance may add this much to it; float64 decides beyond that. */
    const double doubt = 0x1p-40 + (chances ? 0.0 : ldexp(1.0, bits - 64));
    const int32_t unread = 64 - bits;
    const uint64_t top = (uint64_t)1 << 63;
    uint64_t known[PARTS];
    int64_t taken = 0;
    for (int j = 0; j < PARTS; j++)
        known[j] = table[j] >> unread;
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = parts[i] >> unread, x = fractions[i];
        uint64_t chance = chances ? chances[i] : parts[i] << bits;
        int64_t k = (known[0] < word) + (known[1] < word) + (known[2] < word) + (known[3] < word);
        if (k == 4) /* seldom */
            while (k < PARTS && known[k] < word)
                k++;
        double fraction = (double)x * unit;
        double distance = distance_of(0.5 * fraction * ((double)(2 * k) + fraction),
                                      (double)chance * unit);
        unsigned __int128 product = (unsigned __int128)scale * x + top;
        uint64_t rest = (uint64_t)product;
        int open_ended = scale >> 32 ? rest > 0 - scale : rest >> 32 == 0xffffffffu;
        int tie = known[k < PARTS ? k : PARTS - 1] == word;
        if (tie || (distance < doubt && distance > -doubt) || open_ended)
            return -1;
        out[taken] = k * (int64_t)scale + (int64_t)(uint64_t)(product >> 64);
        taken += distance > 0;
    }
    return taken;
}

/* Put the magnitudes with their signs into out: one bit each, the upper ones of a byte first. */
EXPORT void fedpower_signs(const int64_t *magnitudes, int64_t n, const uint8_t *bits, int64_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t negative = -(int64_t)(bits[i >> 3] >> (7 - (i & 7)) & 1);
        out[i] = (magnitudes[i] ^ negative) - negative;
    }
}
