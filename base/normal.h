// SPDX-License-Identifier: Apache-2.0
/* Normal random numbers: Box-Muller (1958) for a block of words at a time, in double precision, without calls
 * and branches, so that compilers vectorize the loops: initializing a large model takes a fraction of a
 * second.
 *
 * A word is an angle in units of 2^-32 turns; it is reduced to a quarter turn exactly, as an integer.
 * Logarithm, sine and cosine are series accurate to 2e-16 on the reduced range. Only IEEE operations
 * without contraction are used, so scalar and vector code, and all processors, give identical bits. */
#pragma once

#include "base/philox.h"

#include <math.h>
#include <string.h>

/* Overridden where this header is compiled for other processors (kernels/cuda). */
#ifndef NORMAL_FUNCTION
#define NORMAL_FUNCTION static inline
#endif

/* The double of an integer below 2^52, by its bits: there is no vector instruction for it before AVX-512. */
NORMAL_FUNCTION double normal_exact(uint64_t integer)
{
    uint64_t bits = integer | 0x4330000000000000; // + 2^52
    double sum;
    memcpy(&sum, &bits, sizeof sum);
    return sum - 0x1p52;
}

/* ln(u) for a normal number: u = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1)/(m + 1)). */
NORMAL_FUNCTION double normal_log(double u)
{
    uint64_t bits;
    memcpy(&bits, &u, sizeof bits);
    // e + 1024; the constant is sqrt(1/2): m stays around 1
    uint64_t biased = (bits - 0x3FE6A09E667F3BCD + ((uint64_t)1024 << 52)) >> 52;
    bits -= (biased - 1024) << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double series = 1.0 / 19.0;
    series = series * z + 1.0 / 17.0;
    series = series * z + 1.0 / 15.0;
    series = series * z + 1.0 / 13.0;
    series = series * z + 1.0 / 11.0;
    series = series * z + 1.0 / 9.0;
    series = series * z + 1.0 / 7.0;
    series = series * z + 1.0 / 5.0;
    series = series * z + 1.0 / 3.0;
    return (normal_exact(biased) - 1024.0) * 0.69314718055994530942 + 2.0 * (s + s * z * series);
}

/* sine and cosine of x in [-pi/4, pi/4]. */
NORMAL_FUNCTION double normal_sine(double x)
{
    double z = x * x, series = -1.0 / 1307674368000.0;
    series = series * z + 1.0 / 6227020800.0;
    series = series * z - 1.0 / 39916800.0;
    series = series * z + 1.0 / 362880.0;
    series = series * z - 1.0 / 5040.0;
    series = series * z + 1.0 / 120.0;
    series = series * z - 1.0 / 6.0;
    return x + x * z * series;
}

NORMAL_FUNCTION double normal_cosine(double x)
{
    double z = x * x, series = 1.0 / 20922789888000.0;
    series = series * z - 1.0 / 87178291200.0;
    series = series * z + 1.0 / 479001600.0;
    series = series * z - 1.0 / 3628800.0;
    series = series * z + 1.0 / 40320.0;
    series = series * z - 1.0 / 720.0;
    series = series * z + 1.0 / 24.0;
    series = series * z - 0.5;
    return 1.0 + z * series;
}

/* Computes two standard normals from two words. */
NORMAL_FUNCTION void normal_pair(uint32_t first, uint32_t second, double *a, double *b)
{
    // The argument of the logarithm is in (0, 1]: finite, and exact.
    double square = -2.0 * normal_log((normal_exact(first) + 1.0) * 0x1p-32);
    double radius = sqrt(square > 0.0 ? square : 0.0);
    uint32_t quarter = (second + 0x20000000U) >> 30; // of a turn, rounded to nearest
    double angle = (double)(int32_t)(second - (quarter << 30)) * (6.28318530717958647692 * 0x1p-32);
    double sine = normal_sine(angle), cosine = normal_cosine(angle);
    double x = (quarter & 1) != 0 ? sine : cosine, y = (quarter & 1) != 0 ? cosine : sine;
    *a = radius * (((quarter + 1) & 2) != 0 ? -x : x);
    *b = radius * ((quarter & 2) != 0 ? -y : y);
}

enum { NORMAL_BLOCK = 64, NORMAL_VECTOR = 8 }; // counters, four normals each; counters of a vector, at least

/* How many counters to compute when `needed` more are used: a block at most, and whole vectors. */
NORMAL_FUNCTION int normal_counters(int64_t needed)
{
    return needed < NORMAL_BLOCK ? (int)(needed + NORMAL_VECTOR - 1) / NORMAL_VECTOR * NORMAL_VECTOR
                                 : NORMAL_BLOCK;
}

/* Computes the words of counters [low, low + count) in the stream `high`, as philox_words(); count: at most
 * NORMAL_BLOCK. */
NORMAL_FUNCTION void normal_words(struct philox generator, uint64_t high, uint64_t low, int count,
                                  uint32_t c[4][NORMAL_BLOCK])
{
    for (int i = 0; i < count; i++) {
        c[0][i] = (uint32_t)(low + (uint64_t)i);
        c[1][i] = (uint32_t)((low + (uint64_t)i) >> 32);
        c[2][i] = (uint32_t)high;
        c[3][i] = (uint32_t)(high >> 32);
    }
    uint32_t k0 = generator.key[0], k1 = generator.key[1];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < count; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53U * c[0][i], p1 = (uint64_t)0xCD9E8D57U * c[2][i];
            c[0][i] = (uint32_t)(p1 >> 32) ^ c[1][i] ^ k0;
            c[2][i] = (uint32_t)(p0 >> 32) ^ c[3][i] ^ k1;
            c[1][i] = (uint32_t)p1;
            c[3][i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
}

/* Computes the normals of counters [low, low + count), in the order of their words. */
NORMAL_FUNCTION void normal_block(struct philox generator, uint64_t high, uint64_t low, int count, float *out)
{
    uint32_t words[4][NORMAL_BLOCK];
    float drawn[4][NORMAL_BLOCK];
    normal_words(generator, high, low, count, words);
    for (int j = 0; j < count; j++) {
        double n[4];
        normal_pair(words[0][j], words[1][j], &n[0], &n[1]);
        normal_pair(words[2][j], words[3][j], &n[2], &n[3]);
        for (int k = 0; k < 4; k++)
            drawn[k][j] = (float)n[k];
    }
    for (int j = 0; j < count; j++)
        for (int k = 0; k < 4; k++)
            out[4 * j + k] = drawn[k][j];
}

/* philox_normal(), for compilation for a specific processor. */
NORMAL_FUNCTION void normal_fill(struct philox generator, uint64_t high, int64_t begin, int64_t count,
                                 float *out)
{
    float drawn[4 * NORMAL_BLOCK];
    for (int64_t i = begin; i < begin + count;) {
        const int64_t first = i / 4; // counter
        const int64_t needed = (begin + count + 3) / 4 - first;
        normal_block(generator, high, (uint64_t)first, normal_counters(needed), drawn);
        const int64_t end = needed <= NORMAL_BLOCK ? begin + count : 4 * (first + NORMAL_BLOCK);
        memcpy(out + (i - begin), drawn + (i - 4 * first), (size_t)(end - i) * sizeof *out);
        i = end;
    }
}
