// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"

#include "base/normal.h"

struct philox philox_named(uint64_t seed, const char *name)
{
    // FNV-1a over the name, then the seed stirred in by SplitMix64's finaliser.
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

int64_t philox_permute(struct philox generator, uint64_t high, int64_t n, int64_t index)
{
    int half_bits = 1;
    while (((int64_t)1 << (2 * half_bits)) < n)
        half_bits++;
    const uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t x = (uint64_t)index;
    do {
        uint64_t left = x >> half_bits, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
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
