/* Products of wide rows: see data/wide_product.py. */

#include "loops.h"

#if defined(__aarch64__) && defined(__linux__)
/* Both products of a block of rows with a basis, whose values are treated in a core's cache every time they
   are used and never written to memory. Elsewhere NumPy's BLAS has wider registers than a compiler may
   suppose. Sums are taken in another order than a BLAS takes them, and fused: see privacy/sensitivity.py. */

#define COLUMNS 128 /* of a row that are treated together */
#define BETWEEN (COLUMNS + 8) /* or rows would fall on the same places of a cache */
#define ROWS 64     /* whose products with these are added up together */

#define INLINE static inline __attribute__((always_inline)) /* or the number of pairs would not be known */

struct wide {
    const void *rows;
    const double *center, *gain, *shift; /* of each column; NULL for none */
    const double *factors;               /* of each row; NULL for ones */
    int64_t count, width, row_step;
    int32_t narrow;
};

/* Put the treated values of a row from column `start` on into out: ((x - center) * gain) * factor - shift. */
static inline void fetch(const struct wide *all, int64_t row, int64_t start, int64_t n, double *out)
{
    const int64_t from = row * all->row_step + start;
    const double factor = all->factors ? all->factors[row] : 1.0;
    const double *shift = all->shift ? all->shift + start : NULL;
    const float *narrow = (const float *)all->rows + from;
    const double *x = (const double *)all->rows + from;
    if (all->center || all->gain) {
        for (int64_t j = 0; j < n; j++) {
            double value = all->narrow ? (double)narrow[j] : x[j];
            value = all->center ? value - all->center[start + j] : value;
            out[j] = all->gain ? value * all->gain[start + j] : value;
        }
        x = out;
    }
    if (all->narrow && x != out) {
        if (shift)
            for (int64_t j = 0; j < n; j++)
                out[j] = (double)narrow[j] * factor - shift[j];
        else
            for (int64_t j = 0; j < n; j++)
                out[j] = (double)narrow[j] * factor;
    } else if (shift)
        for (int64_t j = 0; j < n; j++)
            out[j] = x[j] * factor - shift[j];
    else
        for (int64_t j = 0; j < n; j++)
            out[j] = x[j] * factor;
}

/* Put the sum of squares of each treated row from `first` to `last` into out. */
EXPORT void fedpower_wide_squares(const struct wide *all, int64_t first, int64_t last, double *out)
{
    double values[COLUMNS];
    for (int64_t i = first; i < last; i++) {
        pair sums[4] = {{0}};
        double rest = 0.0;
        for (int64_t start = 0; start < all->width; start += COLUMNS) {
            const int64_t n = all->width - start < COLUMNS ? all->width - start : COLUMNS;
            int64_t j = 0;
            fetch(all, i, start, n, values);
            for (; j + 8 <= n; j += 8)
                for (int k = 0; k < 4; k++)
                    ADD_SQUARE(sums[k], at(values + j + 2 * k));
            for (; j < n; j++)
                rest += values[j] * values[j];
        }
        const pair total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        out[i] = total[0] + total[1] + rest;
    }
}

/* Add the products of 4 rows of values, COLUMNS apart, with up to 8 columns of a basis to out. */
INLINE void add_scores(const double *values, int64_t n, const double *basis, int64_t rank, const int pairs,
                       double *out)
{
    float64x2_t sums[4][4] = {{{0}}};
    int64_t j = 0;
    for (; j + 2 <= n; j += 2, basis += 2 * rank) {
        float64x2_t x[4];
        for (int i = 0; i < 4; i++)
            x[i] = vld1q_f64(values + i * COLUMNS + j);
#pragma GCC unroll 4
        for (int p = 0; p < pairs; p++) {
            const float64x2_t one = vld1q_f64(basis + 2 * p), two = vld1q_f64(basis + rank + 2 * p);
            for (int i = 0; i < 4; i++)
                sums[i][p] = vfmaq_laneq_f64(vfmaq_laneq_f64(sums[i][p], one, x[i], 0), two, x[i], 1);
        }
    }
    if (j < n)
        for (int p = 0; p < pairs; p++)
            for (int i = 0; i < 4; i++)
                sums[i][p] = vfmaq_n_f64(sums[i][p], vld1q_f64(basis + 2 * p), values[i * COLUMNS + j]);
    for (int i = 0; i < 4; i++)
        for (int p = 0; p < pairs; p++)
            vst1q_f64(out + i * rank + 2 * p, vaddq_f64(vld1q_f64(out + i * rank + 2 * p), sums[i][p]));
}

/* Add the products of 4 columns of values, COLUMNS from row to row, with up to 8 columns of scores to out. */
INLINE void add_products(const double *values, int64_t count, const double *scores, int64_t rank,
                         const int pairs, double *out)
{
    float64x2_t sums[4][4];
    for (int i = 0; i < 4; i++)
        for (int p = 0; p < pairs; p++)
            sums[i][p] = vld1q_f64(out + i * rank + 2 * p);
    for (int64_t k = 0; k < count; k++, values += BETWEEN, scores += rank) {
        const float64x2_t left = vld1q_f64(values), right = vld1q_f64(values + 2);
#pragma GCC unroll 4
        for (int p = 0; p < pairs; p++) {
            const float64x2_t score = vld1q_f64(scores + 2 * p);
            sums[0][p] = vfmaq_laneq_f64(sums[0][p], score, left, 0);
            sums[1][p] = vfmaq_laneq_f64(sums[1][p], score, left, 1);
            sums[2][p] = vfmaq_laneq_f64(sums[2][p], score, right, 0);
            sums[3][p] = vfmaq_laneq_f64(sums[3][p], score, right, 1);
        }
    }
    for (int i = 0; i < 4; i++)
        for (int p = 0; p < pairs; p++)
            vst1q_f64(out + i * rank + 2 * p, sums[i][p]);
}

/* Add the products of 4 rows of values with the last column of a basis, where its columns are odd, to out. */
static void add_last_scores(const double *values, int64_t n, const double *basis, int64_t rank, double *out)
{
    double sums[4] = {0};
    for (int64_t j = 0; j < n; j++)
        for (int i = 0; i < 4; i++)
            sums[i] = fma(values[i * COLUMNS + j], basis[j * rank], sums[i]);
    for (int i = 0; i < 4; i++)
        out[i * rank] += sums[i];
}

/* Add the products of some columns of values with some columns of scores to out. */
static void add_other_products(const double *values, int64_t width, int64_t count, const double *scores,
                               int64_t rank, int64_t columns, double *out)
{
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < width; i++)
            for (int64_t c = 0; c < columns; c++)
                out[i * rank + c] = fma(values[k * BETWEEN + i], scores[k * rank + c], out[i * rank + c]);
}

#define BY_EIGHT(add, values, n, right, rank, out)                                         \
    for (int64_t c = 0; c + 1 < (rank); c += 8)                                            \
        switch ((rank)-c < 8 ? ((rank)-c) / 2 : 4) {                                       \
        case 4: add(values, n, (right) + c, rank, 4, (out) + c); break;                    \
        case 3: add(values, n, (right) + c, rank, 3, (out) + c); break;                    \
        case 2: add(values, n, (right) + c, rank, 2, (out) + c); break;                    \
        default: add(values, n, (right) + c, rank, 1, (out) + c);                          \
        }

/* Put the products of treated rows with the basis, over the columns from `first` to `last`, into out.

   basis: width by rank.  out: of a multiple of 4 rows, as many as there are or up to 3 more. */
EXPORT void fedpower_wide_scores(const struct wide *all, int64_t first, int64_t last, const double *basis,
                                 int64_t rank, double *out)
{
    double values[4 * COLUMNS] = {0};
    memset(out, 0, (all->count + 3) / 4 * 4 * rank * sizeof *out);
    for (int64_t start = first; start < last; start += COLUMNS) {
        const int64_t n = last - start < COLUMNS ? last - start : COLUMNS;
        const double *here = basis + start * rank;
        for (int64_t i = 0; i < all->count; i += 4) {
            for (int k = 0; k < 4 && i + k < all->count; k++)
                fetch(all, i + k, start, n, values + k * COLUMNS);
            BY_EIGHT(add_scores, values, n, here, rank, out + i * rank)
            if (rank % 2)
                add_last_scores(values, n, here + rank - 1, rank, out + (i + 1) * rank - 1);
        }
    }
}

/* Add the transposed rows times their scores to out, for the columns of the rows from `first` to `last`.

   out: width by rank. */
EXPORT void fedpower_wide_products(const struct wide *all, int64_t first, int64_t last, const double *scores,
                                   int64_t rank, double *out)
{
    double values[ROWS * BETWEEN];
    for (int64_t start = first; start < last; start += COLUMNS) {
        const int64_t n = last - start < COLUMNS ? last - start : COLUMNS;
        for (int64_t i = 0; i < all->count; i += ROWS) {
            const int64_t count = all->count - i < ROWS ? all->count - i : ROWS;
            const double *here = scores + i * rank;
            int64_t j = 0;
            for (int64_t k = 0; k < count; k++)
                fetch(all, i + k, start, n, values + k * BETWEEN);
            for (; j + 4 <= n; j += 4) {
                double *place = out + (start + j) * rank;
                BY_EIGHT(add_products, values + j, count, here, rank, place)
                if (rank % 2)
                    add_other_products(values + j, 4, count, here + rank - 1, rank, 1, place + rank - 1);
            }
            add_other_products(values + j, n - j, count, here, rank, rank, out + (start + j) * rank);
        }
    }
}
#endif
