/* Digests of rows: see data/passes.py. */

#include "loops.h"

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
