// SPDX-License-Identifier: Apache-2.0
/* Partition of a flat gradient buffer into buckets, each reduced by one collective, and of each bucket into
 * one slice per data rank (ZeRO, 1910.02054). Pure arithmetic, identical on every rank.
 *
 *     flat:      | head | norm | mlp 5 | attention 5 | mlp 4 | ...
 *     buckets:   |       0       |          1          |    2 ...
 *     slices:    |0    |1  |2    |0   |1     |2    |3  | ...
 *
 * Neighbouring tensors share a bucket, because many small messages cost more than one large one (2006.15704,
 * section 3.2). Slices are equal up to one block of a tensor: the global norm sums squares block by block
 * (kernels/ops.h), so a slice boundary inside a block would change its bits.
 *
 * Caution: the gradients of both uses of a tied weight are added slice by slice, possibly on two ranks with
 * different neighbours. Each use is `alone` in its bucket, so both are split identically. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A tensor in the flat buffer. */
struct bucket_range {
    int64_t begin, end; // elements
    int64_t block;      // may be split at multiples of this from its begin; 0: not at all
    int unit;           // a bucket contains tensors of one unit only
    bool alone;         // has a bucket of its own
};

struct bucket {
    int first, count;   // ranges
    int64_t begin, end; // elements, from the first range to the last; gaps between ranges (padding) are
                        // included
    int64_t *counts;    // [ranks]: elements of each rank's slice; slices are consecutive
};

struct bucket_plan {
    int ranks, count, range_count;
    struct bucket *buckets; // [count], in flat order
    int *bucket_of;         // [range_count]
    int64_t *counts;        // storage of buckets[].counts
};

/* ranges: in flat order and not overlapping, else BAD_ARGUMENT. A bucket is closed once it holds bucket_bytes
 * of f32. */
MUST_USE enum status bucket_plan_create(const struct bucket_range *ranges, int count, int64_t bucket_bytes,
                                        int ranks, struct bucket_plan *out);
void bucket_plan_destroy(struct bucket_plan *plan); // accepts {0}

/* Invariants; BAD_ARGUMENT names the violated one: buckets contain all ranges, in order and once, they do
 * not overlap, and the slices of the ranks make up each. */
MUST_USE enum status bucket_plan_check(const struct bucket_plan *plan);

/* Returns the start of the slice of `rank` in the flat buffer; for rank == ranks, the end of the bucket. */
int64_t bucket_slice_begin(const struct bucket *bucket, int rank);
