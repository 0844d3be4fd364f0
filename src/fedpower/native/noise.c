/* Noise: see privacy/noise.py. */

#include "loops.h"

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
