/* Rows of a table: see data/tables.py. */

#include "loops.h"

#define STRETCH 64 /* rows of eight columns that stay in the nearest cache as they are turned */

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
