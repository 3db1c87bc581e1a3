// SPDX-License-Identifier: Apache-2.0
/* The checksum of checkpoints of format version 1, which can still be read (docs/checkpoints.md). Version 2
 * uses XXH3 (trainer/files/checksum.h).
 *
 *   32 bytes are a stripe of four words, and each word goes into its own lane:
 *       lane ^= word;  lane ^= lane rotated by 23 ^ lane rotated by 41;  lane *= odd
 *
 * Each step is bijective in the lane and in the word, so a change within one word always changes the sum; any
 * other change is missed with probability 2^-64. It detects truncated and corrupted files. It is not a
 * cryptographic hash: collisions can be constructed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_V1_LANES = 4, CHECKSUM_V1_STRIPE_BYTES = 8 * CHECKSUM_V1_LANES };

struct checksum_v1 {
    uint64_t lane[CHECKSUM_V1_LANES];
    uint64_t bytes;                               // total so far
    unsigned char rest[CHECKSUM_V1_STRIPE_BYTES]; // bytes % 32 bytes of an incomplete stripe
};

void checksum_v1_begin(struct checksum_v1 *sum);
/* Adds bytes, in parts of any length: the sum is that of their concatenation. */
void checksum_v1_add(struct checksum_v1 *sum, const void *bytes, size_t length);
uint64_t checksum_v1_end(const struct checksum_v1 *sum);

/* Combines the three calls. */
uint64_t checksum_v1_of(const void *bytes, size_t length);
