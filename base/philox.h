// SPDX-License-Identifier: Apache-2.0
/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
 * SC 2011). A key and a 128-bit counter give four 32-bit words without state, so a rank generates exactly the
 * elements of its own slice, and every layout generates the same values.
 *
 * Caution: the value of an element may depend on its *global* index only, never on where it is stored. */
#pragma once

#include <stdint.h>

struct philox {
    uint32_t key[2];
};

/* Returns the generator of `name` under `seed` ("embedding.weight", "data.order"). */
struct philox philox_named(uint64_t seed, const char *name);

/* Computes the four words at counter (high, low). */
void philox_words(struct philox generator, uint64_t high, uint64_t low, uint32_t out[4]);

/* Returns the 32-bit word of element `index` in the stream `high`: word index % 4 of counter index / 4. */
uint32_t philox_word(struct philox generator, uint64_t high, uint64_t index);

/* Uniform in [0, 1) with 24 bits: exact in fp32. */
static inline float philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24F;
}

/* Computes standard normals of elements [begin, begin + count) of the stream `high`, by Box-Muller in double
 * precision (base/normal.h) from the pair of words (2i, 2i+1): an element has the same bits in any slice. */
void philox_normal(struct philox generator, uint64_t high, int64_t begin, int64_t count, float *out);

/* Evaluates a permutation of [0, n) at one index, without a table: a Feistel network over the next power of
 * four, with cycle walking. `high` selects the permutation. */
int64_t philox_permute(struct philox generator, uint64_t high, int64_t n, int64_t index);
/* Same at begin, begin + 1, ..., begin + count - 1: less than half the time for hundreds of them. */
void philox_permute_run(struct philox generator, uint64_t high, int64_t n, int64_t begin, int64_t count,
                        int64_t *out);
