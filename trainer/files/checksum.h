// SPDX-License-Identifier: Apache-2.0
/* 64-bit XXH3 with seed 0, as computed by `xxhsum -H3` and Python's xxhash.xxh3_64: it runs at memory
 * speed and detects truncated and corrupted files. It is not a cryptographic hash: collisions can be
 * constructed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t checksum_of(const void *bytes, size_t length);

/* The same for a stream, in parts of any length. */
struct checksum;
struct checksum *checksum_begin(void); // ends the program if out of memory
void checksum_add(struct checksum *sum, const void *bytes, size_t length);
uint64_t checksum_now(const struct checksum *sum);
void checksum_free(struct checksum *sum); // accepts NULL
