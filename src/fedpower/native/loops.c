/* The loops in which NumPy would go over a block of rows several times, once each.

   Every function gives what the NumPy code beside it gives, to the bit (`tests/native`; products of wide
   rows to rounding, as any two BLAS do), and hands back what is not plain: the NumPy code decides it. Nothing here is kept between calls, so that threads may
   call at once. Floating point must be IEEE 754 with no more digits than a double has, which the flags
   in hatch_build.py and the test below ask for. */

#define _XOPEN_SOURCE 700 /* for pread */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifndef _WIN32
#include <unistd.h>
#endif
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

#if FLT_EVAL_METHOD != 0
#error "double must be computed as double: build with SSE2"
#endif

#define GROUP 8 /* rows that are treated together */
#define EXPORT __attribute__((visibility("default")))

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST "unknown"
#endif

/* Which source this was built from. */
EXPORT const char *fedpower_source(void) { return SOURCE_DIGEST; }

/* ---- Rows on the lattice: see data/lattice_rows.py ---------------------------------------------- */

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

/* Two values side by side, as SSE2 and Neon have them, wherever they lie. */
typedef double pair __attribute__((vector_size(16)));
typedef pair anywhere __attribute__((aligned(8), may_alias));

static inline pair at(const double *place) { return *(const anywhere *)place; }
static inline void put(double *place, pair values) { *(anywhere *)place = values; }

/* Add x*x to a sum. Fused where the machine has that: sums of squares of integers are exact either way,
   and others are looked at only as far as any way of rounding them leaves them. */
#ifdef __ARM_NEON
#define ADD_SQUARE(sum, x) ((sum) = (pair)vfmaq_f64((float64x2_t)(sum), (float64x2_t)(x), (float64x2_t)(x)))
#define ROUND(x) ((pair)vrndnq_f64((float64x2_t)(x)))
#else
#define ADD_SQUARE(sum, x) ((sum) += (x) * (x))
#define ROUND(x) (((x) + whole) - whole)
#endif

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

/* ---- Rows of a table: see data/tables.py -------------------------------------------------------- */

#define STRETCH 64 /* rows of eight columns that stay in the nearest cache as they are turned */

/* What stands anywhere in a page of a file, which need not be where a double may. */
typedef pair in_page __attribute__((aligned(1), may_alias));
typedef double one_in_page __attribute__((aligned(1), may_alias));

/* Put columns side by side into out, row by row; return whether every number is finite. */
EXPORT int32_t fedpower_side_by_side(const one_in_page *const *columns, int64_t count, int64_t width,
                                     double *out)
{
    pair beyond = {0};
    double last = 0.0;
    for (int64_t start = 0; start < count; start += STRETCH) {
        int64_t stop = count - start < STRETCH ? count : start + STRETCH, j = 0;
        for (; j + 8 <= width; j += 8) { /* whole lines of a cache are written */
            const one_in_page *column[8];
            memcpy(column, columns + j, sizeof column);
            int64_t k = start;
            for (; k + 2 <= stop; k += 2) {
                double *one = out + k * width + j, *two = one + width;
#pragma GCC unroll 4
                for (int i = 0; i < 8; i += 2) {
                    pair p = *(const in_page *)(column[i] + k), q = *(const in_page *)(column[i + 1] + k);
                    beyond += (p - p) + (q - q); /* of what is not finite NaN, which stays */
                    put(one + i, (pair){p[0], q[0]}), put(two + i, (pair){p[1], q[1]});
                }
            }
            for (; k < stop; k++)
                for (int i = 0; i < 8; i++)
                    out[k * width + j + i] = column[i][k], last += column[i][k] - column[i][k];
        }
        for (; j < width; j++)
            for (int64_t k = start; k < stop; k++)
                out[k * width + j] = columns[j][k], last += columns[j][k] - columns[j][k];
    }
    return beyond[0] + beyond[1] + last == 0.0;
}

/* ---- Pages of Parquet: see data/parquet_pages.py ------------------------------------------------ */

/* What is left of some bytes; at is NULL once they ended before what they began with. */
struct bytes {
    const uint8_t *at, *end;
};

static uint8_t next_byte(struct bytes *raw)
{
    if (raw->at == NULL || raw->at == raw->end)
        return raw->at = NULL, 0;
    return *raw->at++;
}

static void pass_over(struct bytes *raw, uint64_t count)
{
    if (raw->at == NULL || count > (uint64_t)(raw->end - raw->at))
        raw->at = NULL;
    else
        raw->at += count;
}

static uint64_t next_number(struct bytes *raw) /* seven bits a byte, the lowest first */
{
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        uint8_t byte = next_byte(raw);
        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return found;
    }
    return raw->at = NULL, 0;
}

static int64_t next_signed(struct bytes *raw)
{
    uint64_t found = next_number(raw);
    return (int64_t)(found >> 1) ^ -(int64_t)(found & 1);
}

/* Thrift's compact protocol: a structure is its fields and a zero. */
enum { TRUE = 1, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, TEXT, LIST, STRUCTURE = 12 };

/* Go to the next field of a structure; return its type, and 0 after the last one. */
static int next_field(struct bytes *raw, int64_t *number)
{
    uint8_t head = next_byte(raw);
    if (head == 0)
        return 0;
    *number = head >> 4 ? *number + (head >> 4) : (int32_t)next_signed(raw);
    if ((head & 15) == 0)
        raw->at = NULL;
    return head & 15;
}

/* Return how many values a list has, all of this type; none where they have another. */
static int64_t next_list(struct bytes *raw, int type)
{
    uint8_t head = next_byte(raw);
    uint64_t count = head >> 4 == 15 ? next_number(raw) : head >> 4;
    return (head & 15) == type && count < INT32_MAX ? (int64_t)count : -1;
}

static void pass_over_field(struct bytes *raw, int type, int depth)
{
    int64_t number = 0;
    if (depth > 16)
        raw->at = NULL;
    if (type == BYTE)
        pass_over(raw, 1);
    else if (type == INT16 || type == INT32 || type == INT64)
        next_number(raw);
    else if (type == DOUBLE)
        pass_over(raw, 8);
    else if (type == TEXT)
        pass_over(raw, next_number(raw));
    else if (type == STRUCTURE)
        while (raw->at != NULL && (type = next_field(raw, &number)) != 0)
            pass_over_field(raw, type, depth + 1);
    else if (type == LIST) {
        uint8_t head = next_byte(raw);
        uint64_t count = head >> 4 == 15 ? next_number(raw) : head >> 4;
        for (type = (head & 15) == FALSE || (head & 15) == TRUE ? BYTE : head & 15;
             raw->at != NULL && count > 0; count--)
            pass_over_field(raw, type, depth + 1);
    } else if (type != TRUE && type != FALSE)
        raw->at = NULL;
}

#define FIELDS 8      /* of a structure that are kept, the first among them being number 1 */
#define STRUCTURES 9  /* the header itself, and those in it by their place */

static void keep_fields(struct bytes *raw, int structure, int64_t fields[STRUCTURES][FIELDS])
{
    int64_t number = 0;
    int type;
    while (raw->at != NULL && (type = next_field(raw, &number)) != 0) {
        int within = number > 0 && number < FIELDS;
        if (type == INT32 && within)
            fields[structure][number] = next_signed(raw);
        else if ((type == TRUE || type == FALSE) && within)
            fields[structure][number] = type == TRUE;
        else if (type == STRUCTURE && structure == 0 && number > 0 && number < STRUCTURES)
            keep_fields(raw, (int)number, fields);
        else
            pass_over_field(raw, type, 0);
    }
}

/* Put the numbers of a page's header into fields, -1 for those that are not there, and return its length;
   -1 where it is longer than size or no such header. */
EXPORT int64_t fedpower_page_header(const uint8_t *header, int64_t size,
                                    int64_t fields[STRUCTURES][FIELDS])
{
    struct bytes raw = {header, header + size};
    memset(fields, 0xff, STRUCTURES * sizeof *fields); /* -1 everywhere */
    keep_fields(&raw, 0, fields);
    return raw.at == NULL ? -1 : raw.at - header;
}

/* What the end of a file says of a chunk: of one column in one row group. */
struct chunk {
    int64_t type, compression, n_values, size, start, dictionary; /* -1 where it does not say so */
};

static void read_chunk(struct bytes *raw, struct chunk *chunk)
{
    int64_t number = 0;
    int type;
    while (raw->at != NULL && (type = next_field(raw, &number)) != 0) {
        int64_t *into = type == INT32 && number == 1    ? &chunk->type
                        : type == INT32 && number == 4  ? &chunk->compression
                        : type == INT64 && number == 5  ? &chunk->n_values
                        : type == INT64 && number == 7  ? &chunk->size
                        : type == INT64 && number == 9  ? &chunk->start
                        : type == INT64 && number == 11 ? &chunk->dictionary
                                                        : NULL;
        if (into != NULL)
            *into = next_signed(raw);
        else
            pass_over_field(raw, type, 0);
    }
}

/* Read a row group, all of whose chunks must lie in the file, as they are, and have as many values. */
static void read_group(struct bytes *raw, int64_t n_columns, struct chunk *chunks)
{
    int64_t number = 0, n_rows = -1, n_chunks = 0;
    int type;
    while (raw->at != NULL && (type = next_field(raw, &number)) != 0) {
        if (number == 3 && type == INT64) {
            n_rows = next_signed(raw);
        } else if (number == 1 && type == LIST) {
            n_chunks = next_list(raw, STRUCTURE);
            if (n_chunks != n_columns)
                raw->at = NULL;
            for (int64_t i = 0; raw->at != NULL && i < n_chunks; i++) {
                int64_t inner = 0;
                while (raw->at != NULL && (type = next_field(raw, &inner)) != 0) {
                    if (inner == 1 || inner == 8 || inner == 9) /* in another file, or encrypted */
                        raw->at = NULL;
                    else if (inner == 3 && type == STRUCTURE)
                        read_chunk(raw, chunks + i);
                    else
                        pass_over_field(raw, type, 0);
                }
            }
        } else {
            pass_over_field(raw, type, 0);
        }
    }
    for (int64_t i = 0; i < n_columns; i++)
        if (n_chunks != n_columns || chunks[i].n_values != n_rows)
            raw->at = NULL;
}

/* Put what the end of a file says of its chunks into chunks, group by group; return whether it is of so many. */
EXPORT int32_t fedpower_chunks(const uint8_t *footer, int64_t size, int64_t n_groups, int64_t n_columns,
                               struct chunk *chunks)
{
    struct bytes raw = {footer, footer + size};
    int64_t number = 0, found = 0;
    int type;
    for (int64_t i = 0; i < n_groups * n_columns; i++)
        chunks[i] = (struct chunk){-1, -1, -1, -1, -1, -1};
    while (raw.at != NULL && (type = next_field(&raw, &number)) != 0) {
        if (number != 4 || type != LIST) {
            pass_over_field(&raw, type, 0);
            continue;
        }
        found = next_list(&raw, STRUCTURE);
        if (found != n_groups)
            return 0;
        for (int64_t i = 0; raw.at != NULL && i < found; i++)
            read_group(&raw, n_columns, chunks + i * n_columns);
    }
    return raw.at != NULL && found == n_groups;
}

/* Return value i of those that are packed in at most 32 bits each, from the lowest bit on. */
static inline uint32_t packed(const uint8_t *raw, int64_t i, int bits)
{
    uint64_t word;
    memcpy(&word, raw + (i * bits >> 3), sizeof word);
    return (uint32_t)(word >> (i * bits & 7) & ((UINT64_C(1) << bits) - 1));
}

/* A run of Parquet's hybrid of repeated and packed values. */
struct run {
    int64_t count;        /* of values; 0 where the bytes hold no whole run */
    const uint8_t *begin; /* of packed ones; NULL where one value is repeated */
    uint32_t value;
};

static struct run next_run(struct bytes *raw, int bits)
{
    const struct run none = {0, NULL, 0};
    uint64_t head = next_number(raw), many = head >> 1;
    if (raw->at == NULL || many > INT32_MAX)
        return none;
    int64_t size = head & 1 ? (int64_t)many * bits : (bits + 7) / 8;
    if (size > raw->end - raw->at)
        return none;
    struct run run = {(int64_t)many, NULL, 0};
    if (head & 1)
        run.count *= 8, run.begin = raw->at;
    else
        for (int i = 0; i < size; i++)
            run.value |= (uint32_t)raw->at[i] << 8 * i;
    raw->at += size;
    return run;
}

/* Return whether the levels of a page, of one bit each, say of each of count cells that it is there. */
EXPORT int32_t fedpower_all_there(const uint8_t *levels, int64_t size, int64_t count)
{
    struct bytes raw = {levels, levels + size};
    while (count > 0) {
        struct run run = next_run(&raw, 1);
        int64_t here = run.count < count ? run.count : count;
        if (here == 0 || (run.begin == NULL && run.value != 1))
            return 0;
        if (run.begin != NULL)
            for (int64_t i = 0; i < here; i++)
                if (!(run.begin[i >> 3] >> (i & 7) & 1))
                    return 0;
        count -= here;
    }
    return 1;
}

/* Return where the values of a page begin, after levels that say of each of count cells that it is there;
   -1 where they do not. */
EXPORT int64_t fedpower_after_levels(const uint8_t *page, int64_t size, int64_t count)
{
    if (size < 4)
        return -1;
    int64_t length = page[0] | page[1] << 8 | page[2] << 16 | (int64_t)page[3] << 24;
    return length <= size - 4 && fedpower_all_there(page + 4, length, count) ? length + 4 : -1;
}

#ifndef _WIN32 /* where pages are left to Arrow */
/* Undo Snappy's compression: return whether raw is that of exactly size bytes, which are then in out. */
static int snappy(struct bytes raw, uint8_t *out, int64_t size)
{
    int64_t done = 0;
    if (next_number(&raw) != (uint64_t)size)
        return 0;
    while (raw.at != NULL && raw.at < raw.end) {
        uint8_t tag = *raw.at++;
        int64_t length = tag >> 2, back = 0;
        int more = (tag & 3) == 0 ? (length < 60 ? 0 : (int)length - 59) : (tag & 3) == 3 ? 4 : tag & 3;
        if (more > raw.end - raw.at)
            return 0;
        for (int i = 0; i < more; i++)
            back |= (int64_t)raw.at[i] << 8 * i;
        raw.at += more;
        if ((tag & 3) == 0) { /* bytes as they are */
            length = 1 + (more ? back : length);
            if (length > raw.end - raw.at || length > size - done)
                return 0;
            memcpy(out + done, raw.at, (size_t)length);
            raw.at += length;
        } else { /* bytes that were there before, perhaps themselves among them */
            if ((tag & 3) == 1)
                back |= (int64_t)(tag >> 5) << 8, length = 4 + (length & 7);
            else
                length += 1;
            if (back == 0 || back > done || length > size - done)
                return 0;
            for (int64_t i = 0; i < length; i++)
                out[done + i] = out[done + i - back];
        }
        done += length;
    }
    return done == size;
}

/* Read a data page of the first version, plain and not or by Snappy compressed, at a place of a file.

   optional: whether levels come before its values.
   room, page: memory for it as it is stored, and without compression.
   found: its end in the file, where the values begin in page, how many they are, and its size.
   Returns 0 where it is another kind of page, or too large: then the caller decides. */
EXPORT int32_t fedpower_plain_page(int32_t file, int64_t place, int32_t compression, int32_t optional,
                                   uint8_t *room, int64_t room_size, uint8_t *page, int64_t page_size,
                                   int64_t found[4])
{
    int64_t fields[STRUCTURES][FIELDS];
    int64_t size = pread(file, room, (size_t)room_size, place);
    int64_t length = size > 0 ? fedpower_page_header(room, size, fields) : -1;
    if (length < 0)
        return 0;
    int64_t whole = fields[0][2], stored = fields[0][3], n_values = fields[5][1];
    if (fields[0][1] != 0 || fields[5][2] != 0 || fields[5][3] != 3 || fields[5][4] < 3 || fields[5][4] > 4)
        return 0;
    if (whole < 0 || whole > page_size || stored < 0 || stored > size - length || n_values <= 0)
        return 0;
    struct bytes body = {room + length, room + length + stored};
    if (compression == 0 && whole == stored)
        memcpy(page, body.at, (size_t)whole);
    else if (compression != 1 || !snappy(body, page, whole))
        return 0;
    int64_t start = optional ? fedpower_after_levels(page, whole, n_values) : 0;
    if (start < 0 || n_values > (whole - start) / (int64_t)sizeof(double))
        return 0;
    found[0] = place + length + stored, found[1] = start, found[2] = n_values, found[3] = stored;
    return 1;
}
#endif

/* Put the numbers of a dictionary that packed places stand for into out; return whether all do. */
static int look_up(const uint8_t *raw, int bits, const one_in_page *dictionary, int64_t n_known, int64_t count,
                   double *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t place = packed(raw, i, bits);
        if (place >= n_known)
            return 0;
        out[i] = dictionary[place];
    }
    return 1;
}

/* Put the numbers of a dictionary that a page stands for into out; return whether it stands for count. */
EXPORT int32_t fedpower_looked_up(const uint8_t *page, int64_t size, const one_in_page *dictionary,
                                  int64_t n_known, int64_t count, double *out)
{
    struct bytes raw = {page, page + size};
    int bits = next_byte(&raw);
    if (raw.at == NULL || bits > 32)
        return 0;
    while (count > 0) {
        struct run run = next_run(&raw, bits);
        int64_t here = run.count < count ? run.count : count;
        if (here == 0 || (run.begin == NULL && run.value >= n_known))
            return 0;
        if (run.begin == NULL) {
            for (int64_t i = 0; i < here; i++)
                out[i] = dictionary[run.value];
        } else {
            /* The last ones, in groups of eight, are read from a copy: words reach beyond a value. */
            int64_t whole = 8 * ((raw.end - run.begin - 8) / (bits ? bits : 1));
            whole = whole < 0 ? 0 : whole < here ? whole : here;
            if (!look_up(run.begin, bits, dictionary, n_known, whole, out))
                return 0;
            for (int64_t i = whole; i < here; i += 8) {
                uint8_t last[40] = {0};
                memcpy(last, run.begin + i / 8 * bits, (size_t)bits);
                if (!look_up(last, bits, dictionary, n_known, here - i < 8 ? here - i : 8, out + i))
                    return 0;
            }
        }
        out += here;
        count -= here;
    }
    return 1;
}

/* ---- Noise: see privacy/noise.py ---------------------------------------------------------------- */

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

/* Bring finite values to the multiples of spacing, a power of two, and add as many of these as noise says.

   largest: of a value in steps; what lies beyond is brought back to it. */
EXPORT void fedpower_noised(double *values, int64_t n, double spacing, double largest,
                            const int64_t *noise)
{
    for (int64_t i = 0; i < n; i++) {
        double steps = values[i] / spacing;
        steps = steps > largest ? largest : steps < -largest ? -largest : steps;
        values[i] = (double)(llrint(steps) + noise[i]) * spacing;
    }
}

/* ---- Digests of rows: see data/passes.py -------------------------------------------------------- */

/* Return the sum of key[j] * (x ^ x >> 32) over the bits x of n numbers. */
static inline uint64_t digest_of(const uint64_t *row, const uint64_t *key, int64_t n)
{
    uint64_t sum = 0;
    int64_t j = 0;
#ifdef __ARM_NEON
    /* Products modulo 2^64 by halves: low * low, and 2^32 times the other two modulo 2^32. */
    uint64x2_t low_a = vdupq_n_u64(0), low_b = low_a;
    uint32x4_t high_a = vdupq_n_u32(0), high_b = high_a;
    for (; j + 4 <= n; j += 4) {
        uint32x4x2_t x = vld2q_u32((const uint32_t *)(row + j));
        uint32x4x2_t by = vld2q_u32((const uint32_t *)(key + j));
        uint32x4_t low = veorq_u32(x.val[0], x.val[1]);
        low_a = vmlal_u32(low_a, vget_low_u32(low), vget_low_u32(by.val[0]));
        low_b = vmlal_high_u32(low_b, low, by.val[0]);
        high_a = vmlaq_u32(high_a, low, by.val[1]);
        high_b = vmlaq_u32(high_b, x.val[1], by.val[0]);
    }
    low_a = vaddq_u64(low_a, low_b);
    sum = vgetq_lane_u64(low_a, 0) + vgetq_lane_u64(low_a, 1) +
          ((uint64_t)vaddvq_u32(vaddq_u32(high_a, high_b)) << 32);
#endif
    for (; j < n; j++)
        sum += key[j] * (row[j] ^ row[j] >> 32);
    return sum;
}

#define WIDENED 512 /* numbers of float32 that are made float64 together */

/* Put the digest of each row into out: the sum of key[j] * (x ^ x >> 32) over the bits x of its numbers.

   narrow: whether the rows are float32; their digest is that of the same numbers in float64. */
EXPORT void fedpower_digests(const void *rows, int32_t narrow, int64_t count, int64_t width,
                             const uint64_t *key, uint64_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        if (!narrow) {
            out[i] = digest_of((const uint64_t *)rows + i * width, key, width);
            continue;
        }
        const float *row = (const float *)rows + i * width;
        uint64_t sum = 0, words[WIDENED];
        for (int64_t start = 0; start < width; start += WIDENED) {
            int64_t n = width - start < WIDENED ? width - start : WIDENED;
            double wide[WIDENED];
            for (int64_t j = 0; j < n; j++)
                wide[j] = row[start + j];
            memcpy(words, wide, n * sizeof *words);
            sum += digest_of(words, key + start, n);
        }
        out[i] = sum;
    }
}

/* ---- Products of wide rows: see data/wide_product.py -------------------------------------------- */

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

/* ---- Text: see data/files.py -------------------------------------------------------------------- */

#define FURTHEST 60 /* powers of ten, either way, by which numbers are multiplied here */

/* Return whether eight characters are digits. */
static int eight_digits(uint64_t eight)
{
    return ((eight & 0xF0F0F0F0F0F0F0F0u) | (((eight + 0x0606060606060606u) & 0xF0F0F0F0F0F0F0F0u) >> 4)) ==
           0x3333333333333333u;
}

/* Return their number: pairs of digits, then pairs of those, then both halves. The first is in the lowest byte. */
static uint64_t number_of_eight(uint64_t eight)
{
    eight -= 0x3030303030303030u;
    eight = eight * 10 + (eight >> 8);
    return (((eight & 0x000000FF000000FFu) * 0x000F424000000064u) +
            (((eight >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u)) >> 32;
}

/* Read digits into *number and return where they stop: at the line's end, before `end`, at the latest. */
static inline const unsigned char *digits(const unsigned char *text, const unsigned char *end, uint64_t *number)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (uint64_t eight; end - text >= 8; text += 8) {
        memcpy(&eight, text, 8);
        if (!eight_digits(eight))
            break;
        *number = *number * 100000000u + number_of_eight(eight);
    }
#endif
    for (; (unsigned)(*text - '0') < 10; text++)
        *number = *number * 10 + (unsigned)(*text - '0');
    return text;
}

/* Put the double nearest to w * 10^q into *out and return 1, or 0 where this does not tell [L21].
   w: not zero.  powers: of five, 128 bits from the first one on, the upper word first. */
static int nearest(uint64_t w, int q, const uint64_t *powers, uint64_t *out)
{
    const uint64_t *power = powers + 2 * (q + FURTHEST);
    int zeros = __builtin_clzll(w);
    w <<= zeros;
    unsigned __int128 product = (unsigned __int128)w * power[0];
    if (((uint64_t)(product >> 64) & 0x1FF) == 0x1FF)
        product += (uint64_t)(((unsigned __int128)w * power[1]) >> 64);
    uint64_t high = (uint64_t)(product >> 64), low = (uint64_t)product;
    if (low == UINT64_MAX)
        return 0;
    int upper = (int)(high >> 63), shift = upper + 64 - 52 - 3;
    uint64_t found = high >> shift;
    int exponent = (int)(((152170 + 65536) * q) >> 16) + 63 + upper - zeros + 1023;
    if (low <= 1 && q >= -4 && q <= 23 && (found & 3) == 1 && found << shift == high)
        found &= ~(uint64_t)1; /* a tie, to even */
    found = (found + (found & 1)) >> 1;
    if (found >> 53) {
        found = (uint64_t)1 << 52;
        exponent++;
    }
    *out = (found & (((uint64_t)1 << 52) - 1)) | (uint64_t)exponent << 52;
    return 1;
}

/* Read a plain number (-1, 0.5, 12.25e-7) and return where it stops, or NULL for anything else. */
static const unsigned char *number(const unsigned char *text, const unsigned char *end,
                                   const uint64_t *powers, double *out)
{
    uint64_t sign = *text == '-', w = 0, bits = 0;
    const unsigned char *first = text + sign, *point, *last;
    int q = 0;
    for (point = first; (unsigned)(*point - '0') < 10; point++) /* seldom many */
        w = w * 10 + (unsigned)(*point - '0');
    last = point;
    if (point == first || (*first == '0' && point - first > 1))
        return NULL;
    int n_digits = (int)(point - first);
    if (point - first > 19)
        return NULL;
    if (*point == '.') {
        last = digits(point + 1, end, &w);
        if (last == point + 1 || last - first > 60)
            return NULL;
        q = -(int)(last - point - 1);
        n_digits = (int)(last - first) - 1;
        if (n_digits > 19) { /* zeros in front are no digits of w */
            const unsigned char *zero = first;
            for (; *zero == '0' || *zero == '.'; zero++)
                n_digits -= *zero == '0';
            if (n_digits > 19)
                return NULL;
        }
    }
    if (*last == 'e') {
        uint64_t power = 0;
        const unsigned char *start = last + 1;
        int minus = *start == '-';
        start += minus || *start == '+';
        last = digits(start, end, &power);
        if (last == start || last - start > 3)
            return NULL;
        q += minus ? -(int)power : (int)power;
    }
    if (q < -FURTHEST || q > FURTHEST || (w && !nearest(w, q, powers, &bits)))
        return NULL;
    bits |= sign << 63;
    memcpy(out, &bits, sizeof bits);
    return last;
}

/* Put the numbers of whole lines into out and return how many lines these are, or -1 where a line is not
   plain numbers, or has not `width` cells.

   places: of each cell of a line, the column of out that it is for, or -1 for none. */
EXPORT int64_t fedpower_plain_numbers(const unsigned char *text, int64_t size, int32_t delimiter,
                                      int64_t width, const int32_t *places, int64_t n_columns,
                                      const uint64_t *powers, double *out, int64_t most)
{
    const unsigned char *end = text + size;
    int64_t line = 0;
    if (size == 0 || end[-1] != '\n') /* where every loop below stops */
        return -1;
    for (; text < end; line++) {
        if (line == most)
            return -1;
        for (int64_t cell = 0; cell < width; cell++) {
            if (places[cell] >= 0) {
                text = number(text, end, powers, out + line * n_columns + places[cell]);
                if (!text)
                    return -1;
            } else
                while (*text != delimiter && *text != '\n')
                    text++;
            if (cell + 1 == width && places[cell] >= 0 && *text == '\r')
                text++; /* a line's end in two characters */
            if (*text++ != (cell + 1 == width ? '\n' : delimiter))
                return -1;
        }
    }
    return line;
}
