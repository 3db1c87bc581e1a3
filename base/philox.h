// SPDX-License-Identifier: Apache-2.0
/* Random numbers as a pure function: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy
 * as 1, 2, 3", SC 2011). A key and a 128-bit counter give four 32-bit words; there is no state to
 * carry, so a rank can draw exactly the elements of its own slice, and every layout draws the same.
 *
 * The trap: an element's draw may depend on its *global* index only, never on where it is stored. */
#pragma once

#include <stdint.h>

struct philox {
    uint32_t key[2];
};

/* The generator of everything that is named `name` under `seed` ("embedding.weight", "data.order"). */
struct philox philox_named(uint64_t seed, const char *name);

/* Four words at counter (high, low). */
void philox_words(struct philox generator, uint64_t high, uint64_t low, uint32_t out[4]);

/* The 32-bit word of element `index` in the stream `high`: word index % 4 of counter index / 4. */
uint32_t philox_word(struct philox generator, uint64_t high, uint64_t index);

/* Uniform in [0, 1) with 24 bits: exact in fp32. */
static inline float philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24F;
}

/* Standard normals of elements [begin, begin + count) of the stream `high`, by Box-Muller in double
 * precision (base/normal.h) on the pair of words (2i, 2i+1): the same element has the same bits in any slice.
 */
void philox_normal(struct philox generator, uint64_t high, int64_t begin, int64_t count, float *out);

/* A permutation of [0, n) evaluated at one point, without a table: a Feistel network over the next
 * power of four, walked until it lands inside (cycle walking). `high` picks the permutation. */
int64_t philox_permute(struct philox generator, uint64_t high, int64_t n, int64_t index);
/* The same at begin, begin + 1, ..., begin + count - 1: for hundreds of them in less than half the time. */
void philox_permute_run(struct philox generator, uint64_t high, int64_t n, int64_t begin, int64_t count,
                        int64_t *out);
