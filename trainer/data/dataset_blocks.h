// SPDX-License-Identifier: Apache-2.0
/* Evenly spaced blocks of a file, for a checksum whose time does not depend on the size of the file. The
 * first block begins with the first byte, and the last one ends with the last; a file of few blocks is
 * covered completely. */
#pragma once

#include <stdint.h>

enum { DATASET_BLOCKS = 64, DATASET_BLOCK_BYTES = 1 << 16 };

struct dataset_block {
    int64_t at, bytes;
};

/* The number of blocks of a file of `size` bytes, at most `most`, which is at least 2. */
static inline int64_t dataset_block_count(int64_t size, int64_t most)
{
    int64_t all = (size + DATASET_BLOCK_BYTES - 1) / DATASET_BLOCK_BYTES;
    return all <= most ? all : most;
}

/* Block i of dataset_block_count(). */
static inline struct dataset_block dataset_block(int64_t size, int64_t most, int64_t i)
{
    const int64_t block = DATASET_BLOCK_BYTES, count = dataset_block_count(size, most), rest = size - block;
    // Two steps, so that no product overflows.
    int64_t at =
        count * block >= size ? i * block : rest / (count - 1) * i + rest % (count - 1) * i / (count - 1);
    return (struct dataset_block){.at = at, .bytes = size - at < block ? size - at : block};
}
