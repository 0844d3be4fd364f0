/* Rows as whole numbers: see sums/lattice_rows.py, whose NumPy code does the same in several passes. */

#include "loops.h"

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
