// SPDX-License-Identifier: Apache-2.0
/* Data-parallel gradient reduction, bucket by bucket, overlapped with the backward pass (2006.15704, section
 * 3.2). Gradients are stored in one flat buffer in the order in which the backward pass finishes them
 * (bucket_plan.h). The reduction of a bucket starts when its last gradient is ready and all previous buckets
 * have started: every rank thus starts them in the same order, and collectives match. Sums are elementwise in
 * rank order, so the bucket size does not change results.
 *
 * A bucket has one reduction group, so parameters of different meshes (mesh.h) are in different buckets.
 * Buckets start in flat order regardless of their groups, so collectives of different groups match, too.
 *
 * With ZeRO each data rank needs the sum of its slice only: a reduce-scatter, half the traffic of an
 * all-reduce. The other slices are undefined afterwards.
 *
 * If a stage has two replicas that process microbatches of two directions (DualPipe), each direction is first
 * summed over its data ranks, then both sums are added. Addition of two numbers commutes, so both replicas
 * get identical bits, whichever has which direction. */
#pragma once

#include "parallel/bucket_plan.h"
#include "parallel/data_parallel_options.h"
#include "parallel/group.h"

/* Everything pointed to must outlive the buckets. */
struct buckets_config {
    struct group *const *group_of; // [plan->count] the group that sums each bucket
    struct group *stage_replicas;  // NULL if each stage has one copy
    struct device *device;
    struct tensor gradients;        // f32[N]
    const struct bucket_plan *plan; // one range per parameter
    bool scatter; // reduce-scatter: each data rank gets the sum of its slice; else all-reduce
    // Without overlap_grad_reduce every bucket starts in buckets_wait, after all work enqueued until then.
    const struct data_parallel_options *options;
};

struct buckets;

MUST_USE enum status buckets_create(const struct buckets_config *config, struct buckets **out);
void buckets_destroy(struct buckets *buckets); // accepts NULL; synchronizes first

/* Marks ranges [first, first + count) as final for this step once `after` is done; they must not be written
 * until buckets_wait. BAD_ARGUMENT for a range that is already marked. */
MUST_USE enum status buckets_mark_ready(struct buckets *buckets, int first, int count, struct event after);

/* Makes `stream` wait until all gradients are reduced, and resets the state for the next step. BAD_ARGUMENT
 * for a range that was never marked. */
MUST_USE enum status buckets_wait(struct buckets *buckets, struct stream *stream);
