// SPDX-License-Identifier: Apache-2.0
/* The device memory that a rank needs, as a plan predicts it, and what to change where it is short.
 *
 * A rank on a GPU allocates its pool at the start, so that a lack of memory is reported before training, and
 * a step allocates nothing. The planner (planner/plan/memory_plan.h) finds the size of the pool before the
 * run starts; a rank without one allocates as it goes. */
#pragma once

#include "trainer/engine/rank.h"

struct memory_need {
    size_t pool_bytes;              // sufficient for every buffer and the gaps between them
    int64_t part_bytes[PART_COUNT]; // at the peak
};

/* rank_create() for training. On a device with a memory pool the needed bytes are reserved first, so that a
 * shortage is reported before training starts, with this rank's parts and the keys that reduce them. need:
 * NULL: none is reserved. */
MUST_USE enum status rank_create_for_training(const struct run *run, struct world *world,
                                              const struct memory_need *need, struct rank_state *out);

/* Lists the parts, largest first: "activations 3.1 GiB, moments 1.2 GiB, ...". bytes: [PART_COUNT]. */
void memory_need_largest(const int64_t *bytes, struct text *out);

/* Extends the reason of NO_DEVICE_MEMORY on an open device, or of NO_MEMORY in a run on a GPU: adds the step
 * and action, this rank's allocations, and the keys that reduce them. Returns `status` in all cases. */
MUST_USE enum status memory_need_explain(const struct recipe *recipe, const struct rank_state *state,
                                         enum status status);
