// SPDX-License-Identifier: Apache-2.0
/* Small number formats, bit for bit: which float a number becomes, and which eight bits stand for it.
 *
 *              bits s.e.m  bias  largest  smallest      infinity, NaN                        from
 *     e4m3     1.4.3       7     448      2^-9          none, s.1111.111                     OCP FP8 1.0
 * (E4M3FN) e5m2     1.5.2       15    57344    2^-16         s.11111.00, s.11111.01 and above     OCP FP8 1.0
 *     e2m1     1.2.1       1     6        0.5           none, none                           OCP
 * Microscaling 1.0 int8     two's complement  127      1             none, none ternary  two bits of those 1
 * 1             none, none                           BitNet b1.58, 2402.17764 e8m0     a power of two 2^127
 * 2^-127        none, 255                            a scale of Microscaling
 *
 * All round to the nearest, ties to even, and saturate: what is larger than the largest, infinity too,
 * becomes the largest, as NVIDIA's cvt.satfinite does. NaN stays NaN. int8 has no -128: it is symmetric.
 *
 * Rounding takes no table and no branch. With e the exponent of |x|, at least the format's least, the numbers
 * of the format around x are multiples of 2^(e - m); and in float arithmetic (|x| + c) - c with
 * c = 2^(e - m + 23) rounds |x| to those multiples, ties to even, because the last bit of a float as large as
 * c is worth exactly that. int8 is e = 6 and ternary e = 0 throughout.
 *
 * The trap: the sum must be rounded to float. A compiler that may reassociate (-ffast-math) deletes it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum number_format {
    NUMBER_E4M3,
    NUMBER_E5M2,
    NUMBER_E2M1,
    NUMBER_INT8,
    NUMBER_TERNARY,
    NUMBER_FORMAT_COUNT
};

struct number_facts {
    const char *name;
    int exponent_bits, mantissa_bits, bias; // exponent_bits 0: an integer
    float largest;
    int largest_exponent; // of the largest: floor(log2(largest))
    int least_exponent;   // of a normal number; below it steps stay the same
};
const struct number_facts *number_facts(enum number_format format);

/* The bits of x in a format: its low bits, the others 0. NaN where there is none: 6 in e2m1, 0 in the
 * integers. */
uint8_t number_encode(enum number_format format, float x);
/* What they mean. NaN for those that mean nothing: ternary 2, bits above the format's. */
float number_decode(enum number_format format, uint8_t code);

/* The scales of Microscaling: 2^exponent, clamped to what there is. */
uint8_t e8m0_encode(int exponent);
float e8m0_decode(uint8_t code); // 255: NaN

/* A format's rounding, ready for a loop. */
struct rounder {
    float largest;
    uint32_t least; // the exponent field of the least exponent
    uint32_t steps; // from an exponent field to that of c
};
struct rounder number_rounder(enum number_format format);

static inline float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The exponent field of |x| where the format's numbers lie around it, and |x| itself, saturated. */
static inline uint32_t number_field(struct rounder r, float x, float *magnitude)
{
    float a = float_of_bits(bits_of_float(x) & 0x7FFFFFFFU);
    *magnitude = a > r.largest ? r.largest : a;
    uint32_t field = bits_of_float(*magnitude) & 0x7F800000U;
    return field > r.least ? field : r.least;
}

static inline float number_with_sign(float magnitude, float of)
{
    return float_of_bits(bits_of_float(magnitude) | (bits_of_float(of) & 0x80000000U));
}

/* The number of the format nearest to x. */
static inline float number_round(struct rounder r, float x)
{
    float a;
    float c = float_of_bits(number_field(r, x, &a) + r.steps);
    return number_with_sign((a + c) - c, x);
}

/* One of the two numbers of the format around x, the farther one the more seldom: with `word` uniform over
 * 32 bits the mean is x, to 2^-32 of a step. What the format has stays what it is. */
static inline float number_round_stochastic(struct rounder r, float x, uint32_t word)
{
    float a;
    uint32_t step = number_field(r, x, &a) + r.steps - (23U << 23);
    double position = (double)a * (1.0 / (double)float_of_bits(step)) + (double)word * 0x1p-32;
    float down = a == a ? (float)(int32_t)position : a;
    return number_with_sign(down * float_of_bits(step), x);
}
