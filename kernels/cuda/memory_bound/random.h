// SPDX-License-Identifier: Apache-2.0
/* base/philox.h on the device, and dropout factors: bit-identical to the host's. */
#pragma once

#include "kernels/cuda/runtime/launch.h"

static __device__ inline void philox_quad(struct philox generator, uint64_t high, uint64_t low,
                                          uint32_t out[4])
{
    uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
    uint32_t c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
    uint32_t k0 = generator.key[0], k1 = generator.key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = static_cast<uint64_t>(0xD2511F53U) * c0, p1 = static_cast<uint64_t>(0xCD9E8D57U) * c2;
        c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(p1);
        c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(p0);
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Precomputed constants of a mask: uniform >= p is, in integers, word >> 8 >= p * 2^24. */
struct dropout_rule {
    struct philox generator;
    uint32_t threshold;
    float scale;
};

static inline struct dropout_rule dropout_rule_of(const struct dropout *dropout)
{
    double threshold = ceil(static_cast<double>(dropout->probability) * 0x1p24);
    return {dropout->generator, static_cast<uint32_t>(threshold), 1.0F / (1.0F - dropout->probability)};
}

static __device__ inline float dropout_factor(const struct dropout_rule &rule, uint32_t word)
{
    return word >> 8 >= rule.threshold ? rule.scale : 0.0F;
}

/* The words of elements [first, first + 4) of the stream `high`, from one counter or two. */
static __device__ inline void philox_run(struct philox generator, uint64_t high, uint64_t first,
                                         uint32_t out[4])
{
    uint32_t word[8] = {};
    const unsigned offset = static_cast<unsigned>(first % 4);
    philox_quad(generator, high, first / 4, word);
    if (offset != 0)
        philox_quad(generator, high, first / 4 + 1, word + 4);
    for (unsigned i = 0; i < 4; i++) {
        out[i] = 0;
        for (unsigned w = 0; w < 8; w++) // constant indices keep the words in registers
            out[i] = w == i + offset ? word[w] : out[i];
    }
}

static __device__ inline void dropout_quad(const struct dropout_rule &rule, uint64_t high, uint64_t first,
                                           float factor[4])
{
    uint32_t word[4];
    philox_run(rule.generator, high, first, word);
    for (unsigned i = 0; i < 4; i++)
        factor[i] = dropout_factor(rule, word[i]);
}
