/* What the loops in this folder share.

   In them NumPy would go over a block of rows several times. Every function gives what the NumPy code beside it
   gives, to the bit (`tests/native`; products of wide rows to rounding, as any two BLAS do), and hands back what
   is not plain: the NumPy code decides it. Nothing is kept between calls, so that threads may call at once.
   Floating point must be IEEE 754 with no more digits than a double has, which the flags in hatch_build.py and
   the test below ask for. */

#ifndef FEDPOWER_LOOPS
#define FEDPOWER_LOOPS

#define _XOPEN_SOURCE 700 /* for pread */
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

/* What stands anywhere in a page of a file, which need not be where a double may. */
typedef pair in_page __attribute__((aligned(1), may_alias));
typedef double one_in_page __attribute__((aligned(1), may_alias));

/* Add x*y to a sum. Fused where the machine has that: norms are rounded in some way, and sums of whole numbers
   are exact either way. */
#ifdef __ARM_NEON
#define MULTIPLY_ADD(sum, x, y) ((sum) = (pair)vfmaq_f64((float64x2_t)(sum), (float64x2_t)(x), (float64x2_t)(y)))
#define TRUNCATE(x) trunc(x)
#else
#define MULTIPLY_ADD(sum, x, y) ((sum) += (x) * (y))
#define TRUNCATE(x) ((double)(int32_t)(x)) /* SSE2 has no instruction for doubles */
#endif

#endif
