// SPDX-License-Identifier: Apache-2.0
/* Position embeddings that are functions: rotary ones and ALiBi.
 *
 * Frequencies of the rotary position embedding (2104.09864), and the published ways to scale them for longer
 * contexts than the `original` one. With f = base^(-2i/r) for pair i of r rotated channels and wavelength
 * w = 2 pi / f:
 *
 *   linear   f / factor                                           position interpolation, 2306.15595
 *   NTK      (base * factor^(r/(r-2)))^(-2i/r)                    NTK-aware: the lowest becomes f / factor
 *   Llama 3  f where w < original / high; f / factor where w > original / low; between them a mixture,
 *            linear in original / w
 *   YaRN     f where the original context has more than `high` rotations, f / factor where it has fewer than
 *            `low`, between them a ramp, linear in i (2309.00071). Sines and cosines are multiplied by
 *            0.1 ln(factor) + 1, which scales q and k, and so the temperature of the softmax.
 *
 * ALiBi (2108.12409) subtracts slope * distance from the score of a query and a key. The slopes of n heads, a
 * power of two, are 2^(-8/n), 2^(-16/n) ...; those of another number of heads are the slopes of the next
 * lower power of two, followed by every second one of twice as many heads, as in BLOOM.
 *
 * Everything is in double precision. The functions are also compiled for GPUs. */
#pragma once

#include "kernels/rope_scaling.h"

#include <math.h>
#include <stdint.h>

/* A device whose compiler needs other qualifiers defines this first. */
#ifndef INLINE_EVERYWHERE
#define INLINE_EVERYWHERE static inline
#endif

/* The pair, as a real number, that makes `rotations` turns in the original context. */
INLINE_EVERYWHERE double rope_pair_of_rotations(struct rope_scaling s, double base, double rotated,
                                                double rotations)
{
    return rotated * log(s.original / (rotations * 6.283185307179586)) / (2.0 * log(base));
}

/* The share of f in the mixture of f and f / factor. */
INLINE_EVERYWHERE double rope_share_kept(struct rope_scaling s, double base, double rotated, double pair,
                                         double f)
{
    double share = 0.0; // linear
    if (s.kind == ROPE_LLAMA3)
        share = (s.original * f / 6.283185307179586 - s.low) / (s.high - s.low);
    if (s.kind == ROPE_YARN) {
        double begin = floor(rope_pair_of_rotations(s, base, rotated, s.high));
        double end = ceil(rope_pair_of_rotations(s, base, rotated, s.low));
        begin = begin > 0.0 ? begin : 0.0;
        end = end < rotated - 1.0 ? end : rotated - 1.0;
        end = end > begin ? end : begin + 0.001;
        share = 1.0 - (pair - begin) / (end - begin);
    }
    return share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
}

/* Returns the angle per position of pair `pair` of `rotated` channels. */
INLINE_EVERYWHERE double rope_frequency(struct rope_scaling s, double base, int64_t rotated, int64_t pair)
{
    double r = (double)rotated, i = (double)pair;
    if (s.kind == ROPE_NTK && rotated > 2)
        base *= pow(s.factor, r / (r - 2.0));
    double f = pow(base, -2.0 * i / r);
    if (s.kind == ROPE_UNSCALED || s.kind == ROPE_NTK)
        return f;
    double kept = rope_share_kept(s, base, r, i, f);
    return kept * f + (1.0 - kept) * f / s.factor;
}

/* Returns the factor of all sines and cosines. */
INLINE_EVERYWHERE double rope_magnitude(struct rope_scaling s)
{
    return s.kind == ROPE_YARN ? 0.1 * log(s.factor) + 1.0 : 1.0;
}

/* `heads` of the whole model, and the head's index among them. */
INLINE_EVERYWHERE double alibi_slope(int64_t heads, int64_t head)
{
    int64_t power = 1;
    while (2 * power <= heads)
        power *= 2;
    const double n = (double)power;
    return head < power ? exp2(-8.0 * (double)(head + 1) / n)
                        : exp2(-4.0 * (double)(2 * (head - power) + 1) / n);
}
