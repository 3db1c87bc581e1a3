// SPDX-License-Identifier: Apache-2.0
/* What a rank will take, found by rehearsing it: the real program on a device that computes nothing is made
 * and takes one step. Nothing is read but the recipe, and nothing of the size of the model is allocated.
 *
 *     recipe ── rank r on dry: worker_create, worker_step ──> bytes by part, and the size of r's pool
 *
 * `cluster.device: dry` prints it; a GPU's rank asks for so much at its start, so that a device that is too
 * small is told there, and a step asks for nothing. */
#pragma once

#include "trainer/worker.h"

struct rehearsal {
    struct memory_use use;
    size_t pool_bytes; // a pool of this size is enough for every buffer and the gaps between them
};

/* Of a rank of run's world. slots: [chunks][SLOT_KINDS], or NULL. On a recipe whose device computes, its dry
 * stand-in is rehearsed; hooks are left out. BAD_RECIPE and the like as a run would say them. */
MUST_USE enum status rehearse(const struct run *run, int rank, struct slot_use *slots, struct rehearsal *out);

/* "less is taken with memory.recompute_granularity full, ...": the keys by which this recipe could take less
 * memory of a device. */
void rehearsal_advise(const struct recipe *recipe, struct text *out);
