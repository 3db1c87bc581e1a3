// SPDX-License-Identifier: Apache-2.0
/* Where a flat buffer is cut: into buckets, which travel as one message each, and a bucket into one slice for
 * each data rank (ZeRO, 1910.02054). Pure arithmetic, the same on every rank.
 *
 *     flat:      | head | norm | mlp 5 | attention 5 | mlp 4 | ...
 *     buckets:   |       0       |          1          |    2 ...
 *     slices:    |0    |1  |2    |0   |1     |2    |3  | ...
 *
 * Neighbours share a bucket, because many small messages cost more than one large one (2006.15704, section
 * 3.2). Slices are equal but for a block of a tensor: the global norm adds squares block by block
 * (kernels/ops.h), so a slice that ended inside one would change its bits.
 *
 * The trap: two uses of a tied weight are added slice by slice, perhaps on two ranks with other neighbours.
 * Each is `alone` in its bucket, so both are cut alike. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A tensor in the flat buffer. */
struct bucket_range {
    int64_t begin, end; // elements
    int64_t block;      // it may be cut at multiples of this from its begin; 0: nowhere
    int unit;           // no bucket has tensors of two units
    bool alone;         // nor another one beside this
};

struct bucket {
    int first, count;   // of the ranges
    int64_t begin, end; // elements, from the first range to the last: what lies between two of them (padding)
                        // travels with them
    int64_t *counts;    // [ranks]: elements of each rank's slice, which lie one after the other
};

struct bucket_plan {
    int ranks, count, range_count;
    struct bucket *buckets; // [count], in flat order
    int *bucket_of;         // [range_count]
    int64_t *counts;        // behind buckets[].counts
};

/* ranges: in flat order and not overlapping, or BAD_ARGUMENT. A bucket is closed once it holds bucket_bytes
 * of f32. */
MUST_USE enum status bucket_plan_create(const struct bucket_range *ranges, int count, int64_t bucket_bytes,
                                        int ranks, struct bucket_plan *out);
void bucket_plan_destroy(struct bucket_plan *plan); // takes {0}

/* Where the slice of `rank` begins in the flat buffer; of `ranks`, where the last one ends. */
int64_t bucket_cut(const struct bucket *bucket, int rank);
