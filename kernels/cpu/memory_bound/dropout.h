// SPDX-License-Identifier: Apache-2.0
/* Philox (base/philox.h) for a vector of counters at once, and dropout factors.
 *
 * A row of a mask needs consecutive elements, and one counter yields four:
 *
 *     elements   4k 4k+1 4k+2 4k+3 | 4k+4 ...      one block of elements = LANES counters,
 *     counter    ------ k -------- | k + 1 ...     element 4 l + w from word w of lane l
 *
 * The comparison is done in integers: uniform >= p is (word >> 8) >= p * 2^24, and p * 2^24 is exact in
 * double, so rounding it up to an integer changes nothing. */
#pragma once

#include "kernels/cpu/vector_math.h"
#include "kernels/ops.h"

#include <math.h>

/* Precomputed constants of a mask. */
struct dropout_rule {
    struct philox generator;
    uint32_t threshold; // kept if word >> 8 is at least this
    float scale;        // 1 / (1 - probability)
};

static inline struct dropout_rule dropout_rule(const struct dropout *dropout)
{
    return (struct dropout_rule){.generator = dropout->generator,
                                 .threshold = (uint32_t)ceil((double)dropout->probability * 0x1p24),
                                 .scale = 1.0F / (1.0F - dropout->probability)};
}

/* The 64-bit product m * c of each lane, as its halves. */
VECTOR_INLINE void vecu_multiply(uint32_t m, vecu c, vecu *high, vecu *low)
{
#if defined(__AVX512F__)
    const __m512i factor = _mm512_set1_epi32((int)m);
    __m512i even = _mm512_mul_epu32((__m512i)c, factor);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)c, 32), factor);
    *low = (vecu)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = (vecu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#elif defined(__AVX2__)
    const __m256i factor = _mm256_set1_epi32((int)m);
    __m256i even = _mm256_mul_epu32((__m256i)c, factor);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)c, 32), factor);
    *low = (vecu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = (vecu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#else
    for (int l = 0; l < LANES; l++) {
        uint64_t product = (uint64_t)m * c[l];
        (*high)[l] = (uint32_t)(product >> 32);
        (*low)[l] = (uint32_t)product;
    }
#endif
}

/* c: the counters, lowest word first; overwritten with the words. */
VECTOR_INLINE void philox_words_vec(struct philox generator, vecu c[4])
{
    uint32_t k0 = generator.key[0], k1 = generator.key[1];
    for (int round = 0; round < 10; round++) {
        vecu high0, low0, high1, low1;
        vecu_multiply(0xD2511F53U, c[0], &high0, &low0);
        vecu_multiply(0xCD9E8D57U, c[2], &high1, &low1);
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
}

/* The factor, scale or 0, for each word. */
VECTOR_INLINE vec dropout_factor(const struct dropout_rule *rule, vecu word)
{
    veci kept = (veci)((word >> 8) >= rule->threshold);
    return (vec)((veci)vec_all(rule->scale) & kept);
}

enum { DROPOUT_BLOCK = 4 * LANES };

/* The factors of elements [block * DROPOUT_BLOCK, (block + 1) * DROPOUT_BLOCK) of stream `high`. */
VECTOR_INLINE void dropout_block(const struct dropout_rule *rule, uint64_t high, uint64_t block,
                                 float factor[DROPOUT_BLOCK])
{
    uint64_t counter = block * LANES; // a multiple of LANES: adding a lane never carries
    vecu zero = {0};
    vecu c[4] = {(vecu)veci_lanes() + (uint32_t)counter, zero + (uint32_t)(counter >> 32),
                 zero + (uint32_t)high, zero + (uint32_t)(high >> 32)};
    philox_words_vec(rule->generator, c);
    vec f[4];
    for (int w = 0; w < 4; w++)
        f[w] = dropout_factor(rule, c[w]);
    vec even[2] = {vec_interleave_first(f[0], f[2]), vec_interleave_second(f[0], f[2])};
    vec odd[2] = {vec_interleave_first(f[1], f[3]), vec_interleave_second(f[1], f[3])};
    for (int half = 0; half < 2; half++) {
        vec_store(factor + 2 * half * LANES, vec_interleave_first(even[half], odd[half]));
        vec_store(factor + (2 * half + 1) * LANES, vec_interleave_second(even[half], odd[half]));
    }
}
