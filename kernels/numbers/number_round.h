// SPDX-License-Identifier: Apache-2.0
/* Rounding to a low-precision format (number_format.h), for inner loops: no table, no branch. With e the
 * exponent of |x|, at least the format's least, the format's values around x are multiples of 2^(e - m); in
 * float arithmetic (|x| + c) - c with c = 2^(e - m + 23) rounds |x| to those multiples, ties to even, because
 * the unit in the last place of c has that value. int8 is e = 6 and ternary e = 0 throughout.
 *
 * Caution: the sum must be rounded to float. A compiler that may reassociate (-ffast-math) deletes it. */
#pragma once

#include "kernels/numbers/float_bits.h"
#include "kernels/numbers/number_format.h"

/* Precomputed constants of a format's rounding. */
struct rounder {
    float largest;
    uint32_t least; // the exponent field of the least exponent
    uint32_t steps; // from an exponent field to that of c
};
struct rounder number_rounder(enum number_format format);

/* The exponent field that determines the format's step size at |x|; *magnitude is |x|, saturated. */
NUMBER_FUNCTION uint32_t number_field(struct rounder r, float x, float *magnitude)
{
    float a = float_of_bits(bits_of_float(x) & 0x7FFFFFFFU);
    *magnitude = a > r.largest ? r.largest : a;
    uint32_t field = bits_of_float(*magnitude) & 0x7F800000U;
    return field > r.least ? field : r.least;
}

NUMBER_FUNCTION float number_with_sign(float magnitude, float of)
{
    return float_of_bits(bits_of_float(magnitude) | (bits_of_float(of) & 0x80000000U));
}

/* Rounds x to the nearest value of the format. */
NUMBER_FUNCTION float number_round(struct rounder r, float x)
{
    float a;
    float c = float_of_bits(number_field(r, x, &a) + r.steps);
    return number_with_sign((a + c) - c, x);
}

/* Stochastic rounding between the two values of the format around x: with `word` uniform over 32 bits the
 * mean is x, to 2^-32 of a step. Representable values are unchanged. */
NUMBER_FUNCTION float number_round_stochastic(struct rounder r, float x, uint32_t word)
{
    float a;
    uint32_t step = number_field(r, x, &a) + r.steps - (23U << 23);
    double position = (double)a * (1.0 / (double)float_of_bits(step)) + (double)word * 0x1p-32;
    float down = a == a ? (float)(int32_t)position : a;
    return number_with_sign(down * float_of_bits(step), x);
}
