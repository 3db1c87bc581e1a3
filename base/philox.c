// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"

#include "base/normal.h"

struct philox philox_named(uint64_t seed, const char *name)
{
    // FNV-1a over the name, then mixed with the seed by the finalizer of SplitMix64.
    uint64_t hash = 0xcbf29ce484222325U;
    for (const char *c = name; *c != 0; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3U;
    uint64_t z = hash + 0x9e3779b97f4a7c15U * (seed + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    z ^= z >> 31;
    return (struct philox){.key = {(uint32_t)z, (uint32_t)(z >> 32)}};
}

void philox_words(struct philox generator, uint64_t high, uint64_t low, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32), c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    uint32_t k0 = generator.key[0], k1 = generator.key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53U * c0, p1 = (uint64_t)0xCD9E8D57U * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint32_t philox_word(struct philox generator, uint64_t high, uint64_t index)
{
    uint32_t words[4];
    philox_words(generator, high, index / 4, words);
    return words[index % 4];
}

void philox_normal(struct philox generator, uint64_t high, int64_t begin, int64_t count, float *out)
{
    normal_fill(generator, high, begin, count, out);
}

/* gcc 12 fully unrolls loops of up to 16 lanes instead of vectorizing them. */
enum { FEISTEL_ROUNDS = 6, LANES = 32 };

/* Returns half the bits of the smallest power of four that is at least n. */
static int half_bits_of(int64_t n)
{
    int half_bits = 1;
    while (((int64_t)1 << (2 * half_bits)) < n)
        half_bits++;
    return half_bits;
}

int64_t philox_permute(struct philox generator, uint64_t high, int64_t n, int64_t index)
{
    int half_bits = half_bits_of(n);
    const uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t x = (uint64_t)index;
    do {
        uint64_t left = x >> half_bits, right = x & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint32_t words[4];
            philox_words(generator, high, right << 3 | round, words);
            uint64_t next = left ^ (((uint64_t)words[0] | (uint64_t)words[1] << 32) & mask);
            left = right;
            right = next;
        }
        x = left << half_bits | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Words 0 and 1 of each lane's counter; loops over lanes, which compilers vectorize. */
static void words_of_lanes(struct philox generator, uint64_t high, const uint64_t low[LANES],
                           uint64_t out[LANES])
{
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    uint32_t k0 = generator.key[0], k1 = generator.key[1];
    for (int l = 0; l < LANES; l++) {
        c0[l] = (uint32_t)low[l];
        c1[l] = (uint32_t)(low[l] >> 32);
        c2[l] = (uint32_t)high;
        c3[l] = (uint32_t)(high >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < LANES; l++) {
            uint64_t p0 = (uint64_t)0xD2511F53U * c0[l], p1 = (uint64_t)0xCD9E8D57U * c2[l];
            c0[l] = (uint32_t)(p1 >> 32) ^ c1[l] ^ k0;
            c2[l] = (uint32_t)(p0 >> 32) ^ c3[l] ^ k1;
            c1[l] = (uint32_t)p1;
            c3[l] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    for (int l = 0; l < LANES; l++)
        out[l] = (uint64_t)c0[l] | (uint64_t)c1[l] << 32;
}

/* One Feistel evaluation of every lane. */
static void feistel_lanes(struct philox generator, uint64_t high, int half_bits, uint64_t x[LANES])
{
    const uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left[LANES], right[LANES], counter[LANES], word[LANES];
    for (int l = 0; l < LANES; l++) {
        left[l] = x[l] >> half_bits;
        right[l] = x[l] & mask;
    }
    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        for (int l = 0; l < LANES; l++)
            counter[l] = right[l] << 3 | round;
        words_of_lanes(generator, high, counter, word);
        for (int l = 0; l < LANES; l++) {
            uint64_t next = left[l] ^ (word[l] & mask);
            left[l] = right[l];
            right[l] = next;
        }
    }
    for (int l = 0; l < LANES; l++)
        x[l] = left[l] << half_bits | right[l];
}

void philox_permute_run(struct philox generator, uint64_t high, int64_t n, int64_t begin, int64_t count,
                        int64_t *out)
{
    int half_bits = half_bits_of(n);
    uint64_t x[LANES] = {0};
    int64_t to[LANES], given = 0, done = 0; // to: output index of a lane; -1: idle
    for (int l = 0; l < LANES; l++) {
        to[l] = given < count ? given : -1;
        x[l] = to[l] >= 0 ? (uint64_t)(begin + given++) : 0;
    }
    while (done < count) {
        feistel_lanes(generator, high, half_bits, x);
        for (int l = 0; l < LANES; l++) {
            if (to[l] < 0 || x[l] >= (uint64_t)n)
                continue; // cycle walking continues
            out[to[l]] = (int64_t)x[l];
            done++;
            to[l] = given < count ? given : -1;
            x[l] = to[l] >= 0 ? (uint64_t)(begin + given++) : 0;
        }
    }
}
