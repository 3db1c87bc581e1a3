// SPDX-License-Identifier: Apache-2.0
/* The 16-bit floating-point types and their conversions to and from fp32.
 *
 *     bf16   1 sign  8 exponent   7 fraction    fp32 without its lower half: same range; relative rounding
 *                                               error at most 2^-8
 *     f16    1 sign  5 exponent  10 fraction    2^-11, up to 65504; below 2^-14 in steps of 2^-24
 *
 * Conversion rounds to nearest, ties to even. It is branch-free, so that loops vectorize, and uses no bf16
 * instructions of the processor, which flush numbers below 2^-126 to 0.
 *
 * Caution: double rounding. Accumulate in fp32 and store once, at the end. */
#pragma once

#include "kernels/numbers/float_bits.h"
#include "kernels/tensor.h"

static inline float float_of_bf16(uint16_t x)
{
    return float_of_bits((uint32_t)x << 16);
}

/* Adds half a unit of the last kept bit, less one, plus one if that bit is odd: a carry rounds up, into the
 * exponent if necessary. A NaN keeps its upper bits and is quieted, so that its fraction is not 0. */
static inline uint16_t bf16_of(float x)
{
    uint32_t bits = bits_of_float(x);
    uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    return (uint16_t)((bits & 0x7fffffffU) > 0x7f800000U ? bits >> 16 | 0x40U : rounded);
}

/* Stochastic rounding (1502.02551): rounds away from zero for as many of the 2^16 values of `half` as the
 * lower half of x, so that the mean is x. Representable values are unchanged. The largest number, infinity
 * and NaN have no upper neighbour and round to nearest. */
static inline uint16_t bf16_of_stochastic(float x, uint32_t half)
{
    uint32_t bits = bits_of_float(x);
    return (bits & 0x7fffffffU) > 0x7f7f0000U ? bf16_of(x) : (uint16_t)((bits + half) >> 16);
}

/* The f16 exponent and fraction, shifted to fp32's fields, are the number times 2^-112, exactly, also for
 * subnormals; infinity and NaN need fp32's largest exponent. */
static inline float float_of_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000U) << 16, size = (uint32_t)(x & 0x7fffU) << 13;
    uint32_t bits = bits_of_float(float_of_bits(size) * 0x1p112F);
    return float_of_bits(sign | bits | (size >= 0x7c00U << 13 ? 0x7f800000U : 0U));
}

/* Below 2^-14 the steps are 2^-24, the same as those of fp32 from 1/2 to 1: adding 1/2 rounds. 65520 is the
 * first number nearer to 65536 than to 65504. */
static inline uint16_t f16_of(float x)
{
    uint32_t bits = bits_of_float(x), size = bits & 0x7fffffffU;
    uint32_t large = (size + 0xfffU + (size >> 13 & 1U) - (112U << 23)) >> 13;
    uint32_t small = bits_of_float(float_of_bits(size) + 0.5F) - 0x3f000000U;
    uint32_t rounded = size < 0x38800000U ? small : size < 0x477ff000U ? large : 0x7c00U;
    uint32_t nan = 0x7e00U | (size >> 13 & 0x1ffU);
    return (uint16_t)((bits >> 16 & 0x8000U) | (size > 0x7f800000U ? nan : rounded));
}

/* to[i] = from[i] for i < count; the arrays must not overlap. */
static inline void widen_floats(enum dtype dtype, const void *from, float *restrict to, int64_t count)
{
    const uint16_t *half = from;
    if (dtype == F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    for (int64_t i = 0; dtype == BF16 && i < count; i++)
        to[i] = float_of_bf16(half[i]);
    for (int64_t i = 0; dtype == F16 && i < count; i++)
        to[i] = float_of_f16(half[i]);
}

static inline void narrow_floats(enum dtype dtype, const float *restrict from, void *to, int64_t count)
{
    uint16_t *restrict half = to;
    if (dtype == F32)
        memcpy(to, from, (size_t)count * sizeof *from);
    for (int64_t i = 0; dtype == BF16 && i < count; i++)
        half[i] = bf16_of(from[i]);
    for (int64_t i = 0; dtype == F16 && i < count; i++)
        half[i] = f16_of(from[i]);
}
