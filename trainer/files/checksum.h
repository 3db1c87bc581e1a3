// SPDX-License-Identifier: Apache-2.0
/* XXH3 with 64 bits and seed 0, as `xxhsum -H3` and Python's xxhash.xxh3_64 compute it: it runs at the speed
 * of memory and finds torn and rotten files. It is no signature: two files of one checksum can be
 * constructed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t checksum_of(const void *bytes, size_t length);

/* The same of a stream, in parts of any length. */
struct checksum;
struct checksum *checksum_begin(void); // NULL when there is no memory
void checksum_add(struct checksum *sum, const void *bytes, size_t length);
uint64_t checksum_now(const struct checksum *sum);
void checksum_free(struct checksum *sum); // takes NULL
