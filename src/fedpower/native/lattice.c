/* Rows as integers, counts over rows, and noise: loops for which NumPy would read its arrays several times.

   sums/lattice.py, sums/survey.py and privacy/noise.py have NumPy code that does the same, used where this is not
   compiled. Nothing is kept between calls, so that threads may call at the same time. Floating point must be IEEE 754
   without extra precision: the flags in hatch_build.py and the test below make sure of it. */

#ifndef FEDPOWER_ONCE
#define FEDPOWER_ONCE

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "double must be computed as double: build with SSE2"
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST "unknown"
#endif

/* The source from which this library was built. */
EXPORT const char *fedpower_source(void) { return SOURCE_DIGEST; }

/* How the columns of a row are shifted: (x - center) * gain, then clipped. Arrays are padded to a multiple of 8. */
struct columns {
    const double *center, *gain; /* NULL where rows stay as they are */
    const double *low, *high;    /* of shifted values; NULL where nothing is clipped */
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

#define PANEL 8   /* columns that are stored together */
#define CHUNK 128 /* rows whose integers stay in a core's cache */
#define APART (PANEL * CHUNK + 8) /* from panel to panel; a power of two would share cache lines */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
/* The loops over rows are compiled for three kinds of processor; fedpower_suffix names the one to call. */
EXPORT const char *fedpower_suffix(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "_avx512";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "_avx2" : "";
}
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,prefer-vector-width=512")
#define LANES 8
#define NAMED(name) name##_avx512
#include "lattice.c"
#pragma GCC pop_options
#undef LANES
#undef NAMED
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LANES 4
#define NAMED(name) name##_avx2
#include "lattice.c"
#pragma GCC pop_options
#undef LANES
#undef NAMED
#else
EXPORT const char *fedpower_suffix(void) { return ""; }
#endif
#define LANES 2
#define NAMED(name) name
#define NOISE
#endif

#define vec NAMED(vec)
#define bits NAMED(bits)
#define ints NAMED(ints)
typedef double vec __attribute__((vector_size(8 * LANES)));
typedef double NAMED(anywhere) __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
typedef int64_t bits __attribute__((vector_size(8 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

#define at NAMED(at)
#define put NAMED(put)
INLINE vec at(const double *place) { return *(const NAMED(anywhere) *)place; }
INLINE void put(double *place, vec values) { *(NAMED(anywhere) *)place = values; }

#define CHOOSE(which, x, y) ((vec)(((which) & (bits)(x)) | (~(which) & (bits)(y))))
/* Values that are not NaN, and 0 in place of those that are. */
#define WHERE_NUMBER(x, values) ((vec)((bits)((x) == (x)) & (bits)(values)))
/* The nearest integers, halves to even, of values below 2^51 in size. */
#define NEAREST(x) (((x) + 0x1.8p52) - 0x1.8p52)

/* Lanes from j on of a row that has at least LANES - 1 doubles after it; 0 beyond its width. */
#define lanes_of NAMED(lanes_of)
INLINE vec lanes_of(const double *row, ptrdiff_t j, ptrdiff_t width)
{
    static const int64_t first[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    bits place;
    memcpy(&place, first, sizeof place);
    return (vec)((bits)at(row + j) & (place < (bits){0} + (width - j)));
}

/* The same, shifted; a NaN stays one. */
#define shifted NAMED(shifted)
INLINE vec shifted(const double *row, ptrdiff_t j, ptrdiff_t width, const struct columns *columns)
{
    vec x = (lanes_of(row, j, width) - at(columns->center + j)) * at(columns->gain + j);
    if (columns->low) {
        vec low = at(columns->low + j), high = at(columns->high + j);
        x = CHOOSE((bits)(low > x), low, x);
        x = CHOOSE((bits)(high < x), high, x);
    }
    return x;
}

#define added_up NAMED(added_up)
INLINE double added_up(vec values)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            values[k] += values[k + half];
    return values[0];
}

/* Have rows that come a little later read from memory. */
#define fetch NAMED(fetch)
INLINE void fetch(const double *row, ptrdiff_t width)
{
    for (ptrdiff_t j = 0; j < width; j += 8)
        __builtin_prefetch(row + j + 512);
}

/* A row that may be read beyond its end: the last rows of a block from `spare`. */
#define row_of NAMED(row_of)
INLINE const double *row_of(const struct rows *rows, int64_t i, double *spare)
{
    const double *row = rows->values + i * rows->width;
    fetch(row, rows->width);
    if ((rows->count - i - 1) * rows->width >= LANES)
        return row;
    return memcpy(spare, row, sizeof(double) * (size_t)rows->width);
}

/* ---- Rows ---- */

#define sum_of_squares NAMED(sum_of_squares)
INLINE double sum_of_squares(const double *row, ptrdiff_t width)
{
    vec sum = {0};
    for (ptrdiff_t j = 0; j < width; j += LANES) {
        vec x = lanes_of(row, j, width);
        sum += x * x;
    }
    return added_up(sum);
}

/* Put the integers of row i into out, every PANEL of them `apart` from the next; return 1 where it is clipped,
   and -1 where it has a value that is not finite.  spare: room for two rows and 16. */
#define put_row NAMED(put_row)
INLINE int put_row(const struct rows *rows, int64_t i, const struct rule *rule, double *spare, double *out,
                   ptrdiff_t apart)
{
    const ptrdiff_t width = rows->width;
    double *own = spare + width + PANEL;
    const double *stored = row_of(rows, i, spare), *row = stored;
    double bound = rule->bound, longer = rule->longer, norm = bound, squares;
    int clipped = 0;
    if (rule->columns.gain) {
        vec sum = {0};
        for (ptrdiff_t j = 0; j < width; j += LANES) {
            vec x = shifted(stored, j, width, &rule->columns);
            put(own + j, x);
            sum += x * x;
        }
        row = own, squares = added_up(sum);
    } else
        squares = sum_of_squares(row, width);
    if (rule->normalize || !(squares < 0.999 * (bound * bound))) { /* most rows are short, and need no root */
        if (!(squares <= LARGEST) || (rule->normalize && squares < SMALLEST)) {
            double peak = 0.0;
            for (ptrdiff_t j = 0; j < width; j++) {
                if (!isfinite(stored[j]))
                    return -1;
                peak = fabs(row[j]) > peak ? fabs(row[j]) : peak;
            }
            peak = peak > DBL_MAX ? DBL_MAX : peak > 0.0 ? peak : 1.0;
            for (ptrdiff_t j = 0; j < width; j++) /* what left float64 as it was shifted is its largest */
                own[j] = (row[j] > DBL_MAX ? DBL_MAX : row[j] < -DBL_MAX ? -DBL_MAX : row[j]) / peak;
            row = own, bound /= peak, longer /= peak;
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
    const double factor = (rows->sides ? rows->sides[i] * rule->target : rule->target) / norm;
    for (ptrdiff_t j = 0; j < width; j += LANES) {
        vec x = lanes_of(row, j, width) * factor;
        put(out + j / PANEL * apart + j % PANEL, __builtin_convertvector(__builtin_convertvector(x, ints), vec));
    }
    return clipped;
}

/* Put the integers of rows into out, row by row; return how many are clipped, or -1 where one is not finite. */
EXPORT int64_t NAMED(fedpower_lattice_rows)(const struct rows *rows, const struct rule *rule, double *spare,
                                            double *out)
{
    const int64_t width = rows->width;
    int64_t n_clipped = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        int last = (rows->count - i - 1) * width < LANES;
        double *place = last ? spare + 2 * (width + PANEL) : out + i * width; /* the next row overwrites what is too much */
        int clipped = put_row(rows, i, rule, spare, place, PANEL);
        if (clipped < 0)
            return -1;
        if (last)
            memcpy(out + i * width, place, sizeof(double) * (size_t)width);
        n_clipped += clipped;
    }
    return n_clipped;
}

/* Add the products of four columns (from q on) with the PANEL columns of `panels` panels (from p on) to out,
   `step` from row to row. */
#define add_tile NAMED(add_tile)
INLINE void add_tile(const double *p, const double *q, ptrdiff_t count, double *out, ptrdiff_t step, const int panels)
{
    enum { EACH = PANEL / LANES };
    vec sums[4][4 * EACH];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < panels * EACH; j++)
            sums[i][j] = (vec){0};
    for (ptrdiff_t k = 0; k < count; k++, p += PANEL, q += PANEL)
        for (int j = 0; j < panels * EACH; j++) {
            vec left = at(p + j / EACH * APART + j % EACH * LANES);
            for (int i = 0; i < 4; i++)
                sums[i][j] += left * q[i];
        }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < panels * EACH; j++) {
            double *place = out + i * step + j * LANES;
            put(place, at(place) + sums[i][j]);
        }
}

/* Add the integers of rows to total, and their squares to the lower triangle of `squares`, while they are in a
   core's cache; return what fedpower_lattice_rows does.

   exact: rows whose squares a double holds exactly.  scratch: (133 + padded + 3) * padded + 64 doubles, padded being
   the width rounded up to 8. */
EXPORT int64_t NAMED(fedpower_lattice_squares)(const struct rows *rows, const struct rule *rule, int64_t exact,
                                               double *scratch, int64_t *total, int64_t *squares)
{
    const int64_t width = rows->width, padded = (width + PANEL - 1) / PANEL * PANEL;
    const size_t added = sizeof(double) * (size_t)((1 + padded) * padded);
    double *panels = (double *)(((uintptr_t)scratch + 63) / 64 * 64);
    double *sums = panels + padded / PANEL * APART, *products = sums + padded, *spare = products + padded * padded;
    int64_t n_clipped = 0;
    memset(panels, 0, sizeof(double) * (size_t)(padded / PANEL * APART));
    memset(sums, 0, added);
    for (int64_t start = 0, held = 0; start < rows->count; start += CHUNK) {
        int64_t size = rows->count - start < CHUNK ? rows->count - start : CHUNK;
        for (int64_t k = 0; k < size; k++) {
            int clipped = put_row(rows, start + k, rule, spare, panels + PANEL * k, APART);
            if (clipped < 0)
                return -1;
            n_clipped += clipped;
        }
        for (int64_t j = 0; j < width; j += PANEL) {
            const double *panel = panels + j / PANEL * APART;
            for (int k = 0; k < PANEL; k += LANES) {
                vec sum = at(sums + j + k);
                for (int64_t row = 0; row < size; row++)
                    sum += at(panel + PANEL * row + k);
                put(sums + j + k, sum);
            }
            for (int half = 0; half < PANEL; half += 4) {
                const double *q = panel + half;
                double *out = products + (j + half) * padded;
                int64_t i = 0;
                if (LANES == 8) {
                    for (; i + 4 * PANEL <= j + PANEL; i += 4 * PANEL)
                        add_tile(panels + i / PANEL * APART, q, size, out + i, padded, 4);
                    for (; i + 2 * PANEL <= j + PANEL; i += 2 * PANEL)
                        add_tile(panels + i / PANEL * APART, q, size, out + i, padded, 2);
                }
                for (; i <= j; i += PANEL)
                    add_tile(panels + i / PANEL * APART, q, size, out + i, padded, 1);
            }
        }
        held += size;
        if (held + CHUNK > exact || start + size == rows->count) {
            for (int64_t j = 0; j < width; j++) {
                total[j] += (int64_t)sums[j];
                for (int64_t i = 0; i <= j; i++)
                    squares[j * width + i] += (int64_t)products[j * padded + i];
            }
            memset(sums, 0, added);
            held = 0;
        }
    }
    return n_clipped;
}

/* ---- Counts: a row counts `weights` times; once where that is NULL. ---- */

/* Columns whose places are found together, by vectors, before any is counted. */
#define STRIP 64
#define count_strip NAMED(count_strip)
INLINE void count_strip(const int32_t *places, int64_t size, int64_t weight, int64_t *counts)
{
    for (int64_t j = 0; j < size; j++)
        counts[places[j]] += weight;
}

/* For each column, count rows by sign and exponent: there are `middle` places for each sign, 0 between them, and one
   for what is not finite. */
EXPORT void NAMED(fedpower_count_octaves)(const struct rows *rows, const int64_t *weights, int64_t middle,
                                          int64_t *counts)
{
    const int64_t width = rows->width, n_places = 2 * middle + 2;
    const int32_t most = (int32_t)middle, least = 1022 - most / 2;
    for (int64_t i = 0; i < rows->count; i++)
        for (int64_t start = 0; start < width; start += STRIP) {
            const double *row = rows->values + i * width + start;
            const int64_t size = width - start < STRIP ? width - start : STRIP;
            int32_t places[STRIP];
            fetch(row, size);
            for (int64_t j = 0; j < size; j++) {
                uint64_t word;
                memcpy(&word, row + j, 8);
                int32_t exponent = (int32_t)(word >> 52), far = (exponent & 0x7ff) - least;
                far = far < 0 ? 0 : far > most ? most : far;
                far = most + (exponent & 0x800 ? -far : far);
                places[j] = (int32_t)(j * n_places) + ((exponent & 0x7ff) == 0x7ff ? 2 * most + 1 : far);
            }
            count_strip(places, size, weights ? weights[i] : 1, counts + start * n_places);
        }
}

/* For each column, count rows by the integer part of their shifted values, which are clipped from 0 to n_places - 2;
   a NaN belongs to the last place.  spare: room for a row. */
EXPORT void NAMED(fedpower_count_bins)(const struct rows *rows, const int64_t *weights, const struct columns *columns,
                                       double *spare, int64_t n_places, int64_t *counts)
{
    const int64_t width = rows->width;
    for (int64_t i = 0; i < rows->count; i++) {
        const double *row = row_of(rows, i, spare);
        for (int64_t start = 0; start < width; start += STRIP) {
            const int64_t size = width - start < STRIP ? width - start : STRIP;
            int32_t places[STRIP];
            for (int32_t j = 0; j < size; j += LANES) {
                vec x = shifted(row, start + j, width, columns);
                ints place = __builtin_convertvector(CHOOSE((bits)(x == x), x, (vec){0} + (double)(n_places - 1)), ints);
                memcpy(places + j, &place, sizeof place);
                for (int32_t k = 0; k < LANES; k++)
                    places[j + k] += (j + k) * (int32_t)n_places;
            }
            count_strip(places, size, weights ? weights[i] : 1, counts + start * n_places);
        }
    }
}

/* For each column, add up the nearest integers of shifted values, their squares, and the rows that have a value.
   spare: room for a row.  sums: three times the width rounded up to 8, all below 2^53: exact. */
EXPORT void NAMED(fedpower_sum_cells)(const struct rows *rows, const int64_t *weights, const struct columns *columns,
                                      double *spare, double *sums)
{
    const int64_t width = rows->width, padded = (width + PANEL - 1) / PANEL * PANEL;
    double *squares = sums + padded, *present = sums + 2 * padded;
    for (int64_t i = 0; i < rows->count; i++) {
        const vec weight = (vec){0} + (weights ? (double)weights[i] : 1.0);
        const double *row = row_of(rows, i, spare);
        for (int64_t j = 0; j < width; j += LANES) {
            vec cells = shifted(row, j, width, columns), value = WHERE_NUMBER(cells, NEAREST(cells));
            vec sum = weight * value;
            put(sums + j, at(sums + j) + sum);
            put(squares + j, at(squares + j) + sum * value);
            put(present + j, at(present + j) + WHERE_NUMBER(cells, weight));
        }
    }
}

/* Count rows by the sum of squares of the nearest integers of their shifted values, a NaN being 0: in the place of
   the first of n_edges edges that is no less, or after all of them.  spare: room for a row. */
EXPORT void NAMED(fedpower_count_norms)(const struct rows *rows, const int64_t *weights, const struct columns *columns,
                                        double *spare, const double *edges, int64_t n_edges, int64_t *counts)
{
    const int64_t width = rows->width;
    for (int64_t i = 0; i < rows->count; i++) {
        const double *row = row_of(rows, i, spare);
        vec sum = {0};
        for (int64_t j = 0; j < width; j += LANES) {
            vec cells = shifted(row, j, width, columns), value = WHERE_NUMBER(cells, NEAREST(cells));
            sum += value * value;
        }
        double squares = added_up(sum);
        int64_t place = 0;
        for (int64_t k = 0; k < n_edges; k++)
            place += edges[k] < squares;
        counts[place] += weights ? weights[i] : 1;
    }
}

#ifdef NOISE
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
   table: upper words of the cumulative probabilities of the integer parts.
   out: room for n. */
EXPORT int64_t fedpower_candidates(const uint64_t *parts, const uint64_t *fractions,
                                   const uint64_t *chances, int64_t n, uint64_t scale,
                                   const uint64_t table[PARTS], int64_t *out)
{
    const double unit = 0x1p-64, doubt = 0x1p-40; /* float64 decides beyond that */
    const uint64_t top = (uint64_t)1 << 63;
    int64_t taken = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = parts[i], x = fractions[i];
        int64_t k = (table[0] < word) + (table[1] < word) + (table[2] < word) + (table[3] < word);
        if (k == 4) /* seldom */
            while (k < PARTS && table[k] < word)
                k++;
        double fraction = (double)x * unit;
        double distance = distance_of(0.5 * fraction * ((double)(2 * k) + fraction),
                                      (double)chances[i] * unit);
        unsigned __int128 product = (unsigned __int128)scale * x + top;
        uint64_t rest = (uint64_t)product;
        int open_ended = scale >> 32 ? rest > 0 - scale : rest >> 32 == 0xffffffffu;
        int tie = table[k < PARTS ? k : PARTS - 1] == word;
        if (tie || (distance < doubt && distance > -doubt) || open_ended)
            return -1;
        out[taken] = k * (int64_t)scale + (int64_t)(uint64_t)(product >> 64);
        taken += distance > 0;
    }
    return taken;
}
#endif
