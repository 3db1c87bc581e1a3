// SPDX-License-Identifier: Apache-2.0
/* What a rank will take, found by rehearsing it: the real program on a device that computes nothing is made
 * and takes one step. Nothing is read but the recipe, and nothing of the size of the model is allocated.
 *
 *     recipe ── rank r on dry: rank_create, rank_step ──> bytes by part, and the size of r's pool
 *
 * `cluster.device: dry` prints it; a GPU's rank asks for so much at its start, so that a device that is too
 * small is told there, and a step asks for nothing. */
#pragma once

#include "trainer/engine/rank_state.h"

struct memory_plan {
    struct memory_use use;
    size_t pool_bytes; // a pool of this size is enough for every buffer and the gaps between them
};

/* Of a rank of run's world. slots: [chunks][SLOT_KINDS], or NULL. On a recipe whose device computes, its dry
 * stand-in is rehearsed; hooks are left out. BAD_RECIPE and the like as a run would say them. */
MUST_USE enum status memory_plan_make(const struct run *run, int rank, struct slot_use *slots,
                                      struct memory_plan *out);

/* "less is taken with memory.recompute_granularity full, ...": the keys by which this recipe could take less
 * memory of a device. */
void memory_plan_advise(const struct recipe *recipe, struct text *out);

/* What memory is for, largest first: "activations 3.1 GiB, moments 1.2 GiB, ...". bytes: [PART_COUNT]. */
void memory_plan_largest(const int64_t *bytes, struct text *out);

/* Of a run on a GPU that has no memory left, of the GPU or of the host: adds to what was said where this rank
 * stands, what it has, and the keys with which it would take less; what opening the GPU has said says that
 * already. Returns `status`; any other one is left as it is. */
MUST_USE enum status memory_plan_explain(const struct recipe *recipe, const struct rank_state *state,
                                         enum status status);
