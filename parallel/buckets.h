// SPDX-License-Identifier: Apache-2.0
/* Gradients leave for their data-parallel sum as soon as they are finished. They lie in one flat buffer in
 * the order in which the backward pass finishes them, and go bucket by bucket (bucket_plan.h). A bucket
 * starts when its last gradient is ready and all buckets before it have started: so every rank starts them in
 * the same order, and messages match. Sums are elementwise in rank order, so the size of the buckets changes
 * no bit. (2006.15704, section 3.2)
 *
 * Where each data rank keeps the moments of a slice only (ZeRO), it needs the sum of that slice only: half
 * the bytes of an all_reduce. The other slices are lost.
 *
 * Where a stage has two holders that see microbatches of two directions, each direction's sum over the data
 * ranks is complete first, and then the two are added: a sum of two numbers has no order, so both holders get
 * the same bits, and they do not depend on which of them has which direction. */
#pragma once

#include "parallel/bucket_plan.h"
#include "parallel/group.h"

/* All that is pointed to must outlive the buckets. */
struct buckets_config {
    struct group *data, *stage_replicas; // twins: NULL where a stage has one holder
    struct device *device;
    struct tensor gradients;        // f32[N]
    const struct bucket_plan *plan; // one range for each parameter
    bool scatter;                   // each data rank gets the sum of its slice, and else of everything
    bool registered;                // the gradients' memory is made known to the transport
    bool overlap;                   // false: every bucket starts in buckets_wait
};

struct buckets;

MUST_USE enum status buckets_create(const struct buckets_config *config, struct buckets **out);
void buckets_destroy(struct buckets *buckets); // takes NULL; synchronises first

/* Ranges [first, first + count) hold their final sums of this step once `after` is done; nobody writes them
 * until buckets_wait. BAD_ARGUMENT for one that was ready already. */
MUST_USE enum status buckets_ready(struct buckets *buckets, int first, int count, struct event after);

/* `stream` continues when every gradient is summed over the ranks, and the next step may begin. BAD_ARGUMENT
 * for a range that was never ready. */
MUST_USE enum status buckets_wait(struct buckets *buckets, struct stream *stream);
