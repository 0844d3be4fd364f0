/* Rows on the lattice: see data/lattice_rows.py. */

#include "loops.h"

#define GROUP 8 /* rows that are treated together */

struct rule {
    const double *low, *high, *center, *gain; /* of each column; NULL for none */
    double factor;        /* of rows that are not too long */
    double limit, longer; /* of squares: too long above, clipped above */
    double target;        /* what the others are brought to */
    double short_enough;  /* squares of integers that tell that a row was not too long */
    double smallest, largest; /* squares between them keep their digits */
    double most;          /* of squares of integers */
    int64_t reach, offset, within; /* cells of rounded squares */
    int32_t normalize, expect_long;
};

/* 1.5 * 2^52: a double below 2^51 plus this is a whole number, the nearest, ties to even. */
static const double WHOLE = 6755399441055744.0;

static double sum_of_squares(const double *row, ptrdiff_t width)
{
    pair a = {0}, b = {0}, c = {0}, e = {0}; /* four, so that additions need not wait for each other */
    ptrdiff_t j = 0;
    for (; j + 8 <= width; j += 8) {
        pair p = at(row + j), q = at(row + j + 2), r = at(row + j + 4), s = at(row + j + 6);
        ADD_SQUARE(a, p), ADD_SQUARE(b, q), ADD_SQUARE(c, r), ADD_SQUARE(e, s);
    }
    for (; j + 2 <= width; j += 2) {
        pair p = at(row + j);
        ADD_SQUARE(a, p);
    }
    a = (a + b) + (c + e);
    double last = j < width ? row[j] : 0.0;
    return (a[0] + a[1]) + last * last;
}

/* Where integers go: one row to the next, and four columns to the next four. Four by four columns of all
   rows lie together (a panel) where they are multiplied at once, row by row elsewhere. */
struct layout {
    ptrdiff_t row, four;
};

/* Put round(row * factor) into out and return its sum of squares. */
static double rounded(const double *row, double factor, double *out, ptrdiff_t width, ptrdiff_t four)
{
    const pair whole = {WHOLE, WHOLE};
    (void)whole;
    const pair by = {factor, factor};
    pair a = {0}, b = {0}, c = {0}, e = {0};
    ptrdiff_t j = 0;
    for (; j + 8 <= width; j += 8, out += 2 * four) {
        pair p = ROUND(at(row + j) * by), q = ROUND(at(row + j + 2) * by);
        pair r = ROUND(at(row + j + 4) * by), s = ROUND(at(row + j + 6) * by);
        put(out, p), put(out + 2, q), put(out + four, r), put(out + four + 2, s);
        ADD_SQUARE(a, p), ADD_SQUARE(b, q), ADD_SQUARE(c, r), ADD_SQUARE(e, s);
    }
    if (j + 4 <= width) {
        pair p = ROUND(at(row + j) * by), q = ROUND(at(row + j + 2) * by);
        put(out, p), put(out + 2, q);
        ADD_SQUARE(a, p), ADD_SQUARE(b, q);
        j += 4, out += four;
    }
    if (j + 2 <= width) {
        pair p = ROUND(at(row + j) * by);
        put(out, p);
        ADD_SQUARE(b, p);
        j += 2, out += 2;
    }
    a = (a + b) + (c + e);
    double last = 0.0;
    if (j < width)
        *out = last = (row[j] * factor + WHOLE) - WHOLE;
    return (a[0] + a[1]) + last * last;
}

/* Add GROUP rows, one after the other, to total. */
static void add_group(const double *rows, ptrdiff_t width, double *total)
{
    ptrdiff_t j = 0;
    for (; j + 2 <= width; j += 2) {
        const double *row = rows + j;
        pair found = at(total + j);
        for (int i = 0; i < GROUP; i += 4, row += 4 * width)
            found += (at(row) + at(row + width)) + (at(row + 2 * width) + at(row + 3 * width));
        put(total + j, found);
    }
    if (j < width)
        for (int i = 0; i < GROUP; i++)
            total[j] += rows[i * width + j];
}

/* Return a squared norm rounded up to the end of its cell, or -1 where its own rounding leaves that open. */
static double cell_end(double squares, const struct rule *rule)
{
    int64_t bits;
    memcpy(&bits, &squares, sizeof bits);
    if (((bits + (rule->offset - rule->reach)) & rule->within) > rule->within - 2 * rule->reach)
        return -1.0;
    bits = ((bits + rule->offset) | rule->within) + (1 - rule->offset);
    memcpy(&squares, &bits, sizeof bits);
    return squares;
}

/* Return what a row that is too long is multiplied by: a factor without its last 29 bits. */
static double shortened(double target, double squares)
{
    double factor = target / sqrt(squares);
    int64_t bits;
    memcpy(&bits, &factor, sizeof bits);
    bits &= ~(((int64_t)1 << 29) - 1);
    memcpy(&factor, &bits, sizeof bits);
    return factor;
}

/* Return the factor of a row with this sum of squares, and in `found` what it is: as it is (0), too long
   (1), clipped (2), of nothing but zeros or handed back (-1). */
static double factor_of(const double *row, ptrdiff_t width, double squares, const struct rule *rule, int *found)
{
    *found = -1;
    if (!(squares <= rule->largest)) /* nor where it is NaN */
        return 0.0;
    if (squares < rule->smallest) {
        for (ptrdiff_t j = 0; j < width; j++)
            if (row[j] != 0)
                return 0.0;
        *found = 0;
        return 0.0;
    }
    squares = cell_end(squares, rule);
    if (squares < 0)
        return 0.0;
    *found = 0;
    if (rule->normalize)
        return shortened(rule->target, squares);
    if (!(squares > rule->limit))
        return rule->factor;
    *found = squares > rule->longer ? 2 : 1;
    return shortened(rule->target, squares);
}

/* Put the integers of moved rows, at most GROUP of them, `step` apart, into out; say what each is. */
static void on_lattice(const double *rows, ptrdiff_t step, int count, ptrdiff_t width,
                       const struct rule *rule, double *out, struct layout lie, int *found)
{
    double squares[GROUP], factors[GROUP];
    /* Rows side by side: a square root and a division of one need not be waited for by the next. */
    if (rule->expect_long) {
        for (int i = 0; i < count; i++)
            squares[i] = sum_of_squares(rows + i * step, width);
        for (int i = 0; i < count; i++)
            factors[i] = factor_of(rows + i * step, width, squares[i], rule, found + i);
    }
    for (int i = 0; i < count; i++)
        squares[i] = rounded(rows + i * step, rule->expect_long ? factors[i] : rule->factor,
                             out + i * lie.row, width, lie.four);
    for (int i = 0; i < count; i++) {
        if (!rule->expect_long) {
            found[i] = 0;
            if (squares[i] <= rule->short_enough)
                continue;
            double factor = factor_of(rows + i * step, width, sum_of_squares(rows + i * step, width), rule,
                                      found + i);
            squares[i] = rounded(rows + i * step, factor, out + i * lie.row, width, lie.four);
        }
        if (!(squares[i] <= rule->most))
            found[i] = -1;
        if (found[i] < 0)
            for (ptrdiff_t j = 0; j < width; j++)
                out[i * lie.row + j / 4 * lie.four + j % 4] = 0.0;
    }
}

/* Clip, centre and scale a row where it is. */
static void move(double *restrict row, ptrdiff_t width, const struct rule *rule)
{
    const double *low = rule->low, *high = rule->high, *center = rule->center, *gain = rule->gain;
    if (low)
        for (ptrdiff_t j = 0; j < width; j++) {
            double v = row[j] < low[j] ? low[j] : row[j];
            row[j] = v > high[j] ? high[j] : v;
        }
    if (center && gain)
        for (ptrdiff_t j = 0; j < width; j++)
            row[j] = (row[j] - center[j]) * gain[j];
    else if (center)
        for (ptrdiff_t j = 0; j < width; j++)
            row[j] -= center[j];
    else if (gain)
        for (ptrdiff_t j = 0; j < width; j++)
            row[j] *= gain[j];
}

/* Rows of a block, float32 where `narrow`, `row_step` values apart; `moved` has room for GROUP of them. */
struct rows {
    const void *values;
    int32_t narrow;
    int64_t width, row_step;
    const struct rule *rule;
    double *moved;
};

/* The numbers of the rows that are handed back, in order, and how many are handed back, too long, clipped. */
struct tally {
    int64_t *handed, n_handed, n_long, n_clipped;
};

/* Put the integers of rows, at most GROUP of them, into out. */
static void treat(const struct rows *rows, int64_t first, int size, double *out, struct layout lie,
                  struct tally *tally)
{
    const struct rule *rule = rows->rule;
    const int64_t width = rows->width, row_step = rows->row_step;
    int found[GROUP];
    if (!rows->narrow && !rule->low && !rule->center && !rule->gain)
        on_lattice((const double *)rows->values + first * row_step, row_step, size, width, rule, out, lie, found);
    else {
        for (int i = 0; i < size; i++) {
            double *room = rows->moved + i * width;
            for (int64_t j = 0; j < width; j++)
                room[j] = rows->narrow ? (double)((const float *)rows->values)[(first + i) * row_step + j]
                                       : ((const double *)rows->values)[(first + i) * row_step + j];
            move(room, width, rule);
        }
        on_lattice(rows->moved, width, size, width, rule, out, lie, found);
    }
    for (int i = 0; i < size; i++) {
        if (found[i] < 0)
            tally->handed[tally->n_handed++] = first + i;
        tally->n_long += found[i] > 0;
        tally->n_clipped += found[i] > 1;
    }
}

static void tell(const struct tally *tally, int64_t counts[3])
{
    counts[0] = tally->n_handed;
    counts[1] = tally->n_long;
    counts[2] = tally->n_clipped;
}

/* Put the integers of rows into out, row by row, and add their columns up in total.

   rows: count of them, float32 where `narrow`, `row_step` values apart.
   moved: room for GROUP rows.  handed: room for count numbers: of the rows that are handed back, in order,
   whose place in out is filled with zeros.
   counts: how many are handed back, too long, clipped. */
EXPORT void fedpower_lattice_rows(const void *rows, int32_t narrow, int64_t count, int64_t width,
                                  int64_t row_step, const struct rule *rule, double *moved,
                                  double *out, double *total, int64_t *handed,
                                  int64_t counts[3])
{
    const struct rows all = {rows, narrow, width, row_step, rule, moved};
    const struct layout by_rows = {width, 4};
    struct tally tally = {handed, 0, 0, 0};
    for (int64_t start = 0; start < count; start += GROUP) {
        int size = count - start < GROUP ? (int)(count - start) : GROUP;
        double *place = out + start * width;
        treat(&all, start, size, place, by_rows, &tally);
        if (size == GROUP) /* while they are in the nearest cache */
            add_group(place, width, total);
        else
            for (int i = 0; i < size; i++)
                for (int64_t j = 0; j < width; j++)
                    total[j] += place[i * width + j];
    }
    tell(&tally, counts);
}

#if defined(__aarch64__) && defined(__linux__)
/* The squares of integers while they are in a core's cache. Elsewhere NumPy's BLAS has wider registers
   than a compiler may suppose, and multiplies. Integers, so that any order of addition gives the same. */

#define APART 8  /* values between panels, or a row's columns would fall on the same places of a cache */
#define LINE 64  /* bytes that come from memory together */
#define BLOCK 32 /* panels that are multiplied by all others in turn: with 512 rows half a MiB */

/* Add the products of 8 columns (panels p and p + apart) with 4 (panel q) to out, `step` from row to row. */
static void add_tile(const double *p, ptrdiff_t apart, const double *q, ptrdiff_t count, double *out,
                     ptrdiff_t step)
{
    float64x2_t sums[4][4] = {{{0}}};
#pragma GCC unroll 4
    for (ptrdiff_t k = 0; k < count; k++, p += 4, q += 4) {
        const float64x2_t left[4] = {vld1q_f64(p), vld1q_f64(p + 2), vld1q_f64(p + apart), vld1q_f64(p + apart + 2)};
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

/* Add the sums of a panel's 4 columns to total. */
static void add_panel(const double *panel, ptrdiff_t count, double *total)
{
    pair a = {0}, b = {0}, c = {0}, e = {0};
    ptrdiff_t k = 0;
    for (; k + 2 <= count; k += 2, panel += 8)
        a += at(panel), b += at(panel + 2), c += at(panel + 4), e += at(panel + 6);
    if (k < count)
        a += at(panel), b += at(panel + 2);
    put(total, at(total) + (a + c)), put(total + 2, at(total + 2) + (b + e));
}

/* Add the integers of rows up in total, and their squares in the lower triangle of `squares`: what
   fedpower_lattice_rows does, without writing the integers down.

   panels: zeros, room for `chunk` + 2 rows of `padded` columns, a multiple of 8 that is no less than width.
   total: of padded columns.  squares: padded by padded; above the diagonal something is left. */
EXPORT void fedpower_lattice_squares(const void *rows, int32_t narrow, int64_t count, int64_t width,
                                     int64_t row_step, const struct rule *rule, double *moved,
                                     double *panels, int64_t chunk, int64_t padded, double *total,
                                     double *squares, int64_t *handed, int64_t counts[3])
{
    const struct rows all = {rows, narrow, width, row_step, rule, moved};
    const ptrdiff_t apart = 4 * chunk + APART, n_panels = (width + 3) / 4;
    const struct layout in_panels = {4, apart};
    const ptrdiff_t each = narrow ? sizeof(float) : sizeof(double);
    const ptrdiff_t tiles = 1 + n_panels * (n_panels + 2) / 4; /* about so many, so many lines before each */
    const ptrdiff_t share = row_step == width ? 1 + chunk * width * each / (LINE * tiles) : 0;
    struct tally tally = {handed, 0, 0, 0};
    for (int64_t start = 0; start < count; start += chunk) {
        int64_t size = count - start < chunk ? count - start : chunk;
        for (int64_t k = 0; k < size; k += GROUP)
            treat(&all, start + k, size - k < GROUP ? (int)(size - k) : GROUP, panels + 4 * k, in_panels, &tally);
        for (ptrdiff_t i = 0; i < n_panels; i++)
            add_panel(panels + i * apart, size, total + 4 * i);
        /* The next rows are on their way from memory meanwhile. */
        const char *next = (const char *)rows + (start + size) * row_step * each;
        const char *last = (const char *)rows + (start + 2 * size < count ? start + 2 * size : count) * row_step * each;
        for (ptrdiff_t from = 0; from < n_panels; from += BLOCK) {
            ptrdiff_t stop = from + BLOCK < n_panels ? from + BLOCK : n_panels;
            for (ptrdiff_t i = 0; i < stop; i += 2)
                for (ptrdiff_t j = i > from ? i : from; j < stop; j++) {
                    for (ptrdiff_t line = 0; line < share && next < last; line++, next += LINE)
                        __builtin_prefetch(next, 0, 2);
                    add_tile(panels + i * apart, apart, panels + j * apart, size,
                             squares + 4 * j * padded + 4 * i, padded);
                }
        }
    }
    tell(&tally, counts);
}
#endif
