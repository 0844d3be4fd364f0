/* Text: see data/files.py. */

#include "loops.h"

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
