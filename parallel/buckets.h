// SPDX-License-Identifier: Apache-2.0
/* Gradients leave for their data-parallel sum as soon as they are finished. They lie in one flat buffer in
 * the order in which the backward pass finishes them; neighbours share a bucket, because many small messages
 * cost more than one large one:
 *
 *     flat:      | head | norm | mlp 5 | attention 5 | mlp 4 | ...
 *     buckets:   |       0       |          1          |    2 ...
 *
 * A bucket starts when its last gradient is ready and all buckets before it have started: so every rank
 * starts them in the same order, and messages match. Sums are elementwise in rank order, so the
 * size of the buckets changes no bit. (2006.15704, section 3.2)
 *
 * Where a stage has two holders that see microbatches of two directions, each direction's sum over the data
 * ranks is complete first, and then the two are added: a sum of two numbers has no order, so both holders get
 * the same bits, and they do not depend on which of them has which direction. */
#pragma once

#include "parallel/group.h"

struct bucket_range {
    int64_t begin, end; // elements of the flat buffer
};

struct buckets;

/* gradients: f32[N]; it and the groups must outlive the buckets. twins: NULL where a stage has one holder.
 * ranges: one per parameter, in flat order and not overlapping; what lies between two of them (padding) may
 * be summed with them. A bucket is closed once it holds bucket_bytes. overlap false: every bucket starts in
 * buckets_wait. */
MUST_USE enum status buckets_create(struct group *data, struct group *twins, struct device *device,
                                    struct tensor gradients, const struct bucket_range *ranges, int count,
                                    int64_t bucket_bytes, bool overlap, struct buckets **out);
void buckets_destroy(struct buckets *buckets); // takes NULL; synchronises first
int buckets_count(const struct buckets *buckets);

/* Ranges [first, first + count) hold their final sums of this step once `after` is done; nobody writes them
 * until buckets_wait. BAD_ARGUMENT for one that was ready already. */
MUST_USE enum status buckets_ready(struct buckets *buckets, int first, int count, struct event after);

/* `stream` continues when every gradient is summed over the ranks; then the next step begins. BAD_ARGUMENT
 * for a range that was never ready. */
MUST_USE enum status buckets_wait(struct buckets *buckets, struct stream *stream);
