// SPDX-License-Identifier: Apache-2.0
/* A 64-bit checksum of a stream of bytes, fast enough that nobody turns it off (it runs at the speed of
 * memory).
 *
 *   32 bytes are a stripe of four words, and each word goes into its own lane:
 *       lane ^= word;  lane ^= lane rotated by 23 ^ lane rotated by 41;  lane *= odd
 *
 * Each step is one-to-one in the lane and in the word, so a change within one word always changes the sum;
 * any other change goes unseen once in 2^64. It finds torn and rotten files. It is no signature: whoever
 * wants to can make two streams of one sum. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_LANES = 4, CHECKSUM_STRIPE_BYTES = 8 * CHECKSUM_LANES };

struct checksum {
    uint64_t lane[CHECKSUM_LANES];
    uint64_t bytes;                            // so far
    unsigned char rest[CHECKSUM_STRIPE_BYTES]; // bytes % 32 of them wait for the others of their stripe
};

void checksum_begin(struct checksum *sum);
/* In pieces of any length: the sum is that of their concatenation. */
void checksum_add(struct checksum *sum, const void *bytes, size_t length);
uint64_t checksum_end(const struct checksum *sum);

/* All three at once. */
uint64_t checksum_of(const void *bytes, size_t length);
