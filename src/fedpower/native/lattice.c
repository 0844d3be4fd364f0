/* Rows as whole numbers, and noise: loops in which NumPy would go over its arrays several times.

   sums/lattice_rows.py and privacy/noise.py have NumPy code that does the same, used where this is not compiled.
   Nothing is kept between calls, so that threads may call at once. Floating point must be IEEE 754 with no more
   digits than a double has, which the flags in hatch_build.py and the test below ask for. */

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

/* Two values side by side, as SSE2 and Neon have them, wherever they lie. */
typedef double pair __attribute__((vector_size(16)));
typedef pair anywhere __attribute__((aligned(8), may_alias));

static inline pair at(const double *place) { return *(const anywhere *)place; }
static inline void put(double *place, pair values) { *(anywhere *)place = values; }

/* Add x*y to a sum. Fused where the machine has that: norms are rounded in some way, and sums of whole numbers
   are exact either way. */
#ifdef __ARM_NEON
#define MULTIPLY_ADD(sum, x, y) ((sum) = (pair)vfmaq_f64((float64x2_t)(sum), (float64x2_t)(x), (float64x2_t)(y)))
#define TRUNCATE(x) trunc(x)
#else
#define MULTIPLY_ADD(sum, x, y) ((sum) += (x) * (y))
#define TRUNCATE(x) ((double)(int32_t)(x)) /* SSE2 has no instruction for doubles */
#endif

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST "unknown"
#endif

/* Which source this was built from. */
EXPORT const char *fedpower_source(void) { return SOURCE_DIGEST; }

/* ---- Rows ---- */

/* What is done to a row. */
struct rule {
    const double *low, *high;    /* of each column; NULL where nothing is clipped */
    const double *center, *gain; /* NULL where rows stay as they are */
    double bound;  /* on the norm of a row */
    double longer; /* rows beyond it count as clipped */
    double target; /* a little below S, so that no rounding takes a row beyond S */
    int32_t normalize;
};

/* Rows of a block, float32 where `narrow`, `step` values apart. */
struct rows {
    const void *values;
    int32_t narrow;
    int64_t count, width, step;
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

#define MOVE(type)                                                                                          \
    static void move_##type(const type *restrict row, const struct rule *rule, ptrdiff_t width,             \
                            double *restrict out)                                                           \
    {                                                                                                       \
        const double *low = rule->low, *high = rule->high, *center = rule->center, *gain = rule->gain;      \
        if (!low)                                                                                           \
            for (ptrdiff_t j = 0; j < width; j++)                                                           \
                out[j] = ((double)row[j] - center[j]) * gain[j];                                            \
        else                                                                                                \
            for (ptrdiff_t j = 0; j < width; j++) {                                                         \
                double v = (double)row[j] < low[j] ? low[j] : (double)row[j];                               \
                out[j] = ((v > high[j] ? high[j] : v) - center[j]) * gain[j];                               \
            }                                                                                               \
    }

/* Clip, centre and scale a row into out. */
MOVE(float)
MOVE(double)

/* Return whether all values of a row are finite as they are stored. */
static int is_finite(const struct rows *rows, int64_t i)
{
    for (int64_t j = i * rows->step; j < i * rows->step + rows->width; j++)
        if (!isfinite(rows->narrow ? (double)((const float *)rows->values)[j] : ((const double *)rows->values)[j]))
            return 0;
    return 1;
}

/* Put the integers of row i into out, every four of them `apart` from the next; return 1 where it is clipped,
   and -1 where it has a value that is not finite.  moved: room for a row. */
static int put_row(const struct rows *rows, int64_t i, const struct rule *rule, double *moved, double *out,
                   ptrdiff_t apart)
{
    const ptrdiff_t width = rows->width;
    const double *row = (const double *)rows->values + i * rows->step;
    if (rule->gain) {
        if (rows->narrow)
            move_float((const float *)rows->values + i * rows->step, rule, width, moved);
        else
            move_double(row, rule, width, moved);
        row = moved;
    }
    double target = rows->sides ? rows->sides[i] * rule->target : rule->target;
    double bound = rule->bound, longer = rule->longer, squares = sum_of_squares(row, width), norm = bound;
    int clipped = 0;
    if (rule->normalize || !(squares < 0.999 * (bound * bound))) { /* most rows are short, and need no root */
        if (!(squares <= LARGEST) || (rule->normalize && squares < SMALLEST)) {
            if (!is_finite(rows, i))
                return -1;
            double peak = 0.0;
            for (ptrdiff_t j = 0; j < width; j++)
                peak = fabs(row[j]) > peak ? fabs(row[j]) : peak;
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
/* Elsewhere NumPy's BLAS has wider registers than a compiler may suppose, and multiplies. */

#define CHUNK 128 /* rows whose integers stay in a core's cache */
#define APART (4 * CHUNK + 8) /* from four columns to the next four, which do not fall on the same places of it */

/* Add the products of 8 columns (panels p and p + APART) with 4 (panel q) to out, `step` from row to row. */
static void add_tile(const double *p, const double *q, ptrdiff_t count, double *out, ptrdiff_t step)
{
    float64x2_t sums[4][4] = {{{0}}};
#pragma GCC unroll 4
    for (ptrdiff_t k = 0; k < count; k++, p += 4, q += 4) {
        const float64x2_t left[4] = {vld1q_f64(p), vld1q_f64(p + 2), vld1q_f64(p + APART), vld1q_f64(p + APART + 2)};
        const float64x2_t one = vld1q_f64(q), two = vld1q_f64(q + 2);
        for (int j = 0; j < 4; j++) {
            sums[0][j] = vfmaq_laneq_f64(sums[0][j], left[j], one, 0);
            sums[1][j] = vfmaq_laneq_f64(sums[1][j], left[j], one, 1);
            sums[2][j] = vfmaq_laneq_f64(sums[2][j], left[j], two, 0);
            sums[3][j] = vfmaq_laneq_f64(sums[3][j], left[j], two, 1);
        }
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            vst1q_f64(out + i * step + 2 * j, vaddq_f64(vld1q_f64(out + i * step + 2 * j), sums[i][j]));
}

/* Add the integers of rows up in total, and their squares in the lower triangle of `squares`, while they are
   in a core's cache; return what fedpower_lattice_rows does.

   padded: a multiple of 8 that is no less than the width.  panels: zeros, 130 for each of the padded columns.
   total: of padded columns.  squares: padded by padded; above the diagonal something is left. */
EXPORT int64_t fedpower_lattice_squares(const struct rows *rows, const struct rule *rule, double *moved,
                                        int64_t padded, double *panels, double *total, double *squares)
{
    const char *values = rows->values;
    const int64_t line = 64, row_bytes = rows->step * (rows->narrow ? 4 : 8);
    int64_t n_clipped = 0;
    for (int64_t start = 0; start < rows->count; start += CHUNK) {
        int64_t size = rows->count - start < CHUNK ? rows->count - start : CHUNK;
        for (int64_t k = 0; k < size; k++) {
            int clipped = put_row(rows, start + k, rule, moved, panels + 4 * k, APART);
            if (clipped < 0)
                return -1;
            n_clipped += clipped;
        }
        /* The next rows come from memory meanwhile, a part of them before each column of tiles. */
        int64_t next = (start + size) * row_bytes, share = size * row_bytes * 4 / padded;
        int64_t last = start + 2 * size < rows->count ? next + size * row_bytes : rows->count * row_bytes;
        for (int64_t j = 0; j < rows->width; j += 4) {
            for (int64_t stop = next + share; next < stop && next < last; next += line)
                __builtin_prefetch(values + next, 0, 2);
            const double *panel = panels + j / 4 * APART;
            pair a = at(total + j), b = at(total + j + 2);
            for (int64_t k = 0; k < size; k++)
                a += at(panel + 4 * k), b += at(panel + 4 * k + 2);
            put(total + j, a), put(total + j + 2, b);
            for (int64_t i = 0; i <= j; i += 8)
                add_tile(panels + i / 4 * APART, panel, size, squares + j * padded + i, padded);
        }
    }
    return n_clipped;
}
#endif

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
