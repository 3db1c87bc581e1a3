// SPDX-License-Identifier: Apache-2.0
/* Memory planning pass: the memory of a rank, measured by a dry run. The real program is created on a device
 * that computes nothing and runs one step. Reads only the recipe, and allocates nothing of the size of the
 * model.
 *
 *     recipe ── rank r on dry: rank_create, rank_step ──> bytes by part, and the size of r's pool
 *
 * `cluster.device: dry` prints the plan; a rank on a GPU allocates its pool at the start, so that a lack of
 * memory is reported before training, and a step allocates nothing. */
#pragma once

#include "planner/tape/step_recorder.h"
#include "planner/tape/tape.h"
#include "trainer/engine/memory_need.h"

struct memory_plan {
    struct memory_use use;
    size_t pool_bytes;                   // sufficient for every buffer and the gaps between them
    struct step_recorder_counts actions; // how the tape was recorded
};

/* Plans a rank of the run's world. slots: [chunks][SLOT_LIFETIMES], or NULL. If the recipe's device
 * computes, its dry counterpart is used, without observers and traces. Returns the errors that a run would
 * return (BAD_RECIPE, ...). */
MUST_USE enum status memory_plan_make(const struct run *run, int rank, struct slot_use *slots,
                                      struct memory_plan *out);

/* Plans the pools of a run on a device with a memory pool: *out is [world], for free(), with zeros for other
 * ranks than `rank` (-1: all). NULL for another device. */
MUST_USE enum status memory_plan_needs(const struct run *run, int rank, struct memory_need **out);
/* rank_create_for_training() with a plan of this rank, for ranks that are created one by one. */
MUST_USE enum status memory_plan_create_rank(const struct run *run, struct world *world,
                                             struct rank_state *out);

/* As memory_plan_make(), and the tape of the step. Equal actions are run once (step_recorder.h).
 * NOT_SUPPORTED for a tape of more than TAPE_MAX_ITEMS. */
MUST_USE enum status memory_plan_record(const struct run *run, int rank, struct slot_use *slots,
                                        struct memory_plan *out, struct tape **tape);
/* The same tape, for tests: every action is run. */
MUST_USE enum status memory_plan_record_all(const struct run *run, int rank, struct slot_use *slots,
                                            struct memory_plan *out, struct tape **tape);

/* At least so many items are on the tapes of the pipeline ranks of a data rank. */
int64_t memory_plan_least_items(const struct recipe *recipe);
/* NOT_SUPPORTED for a recipe whose step is certainly too long for a tape, before anything is allocated. */
MUST_USE enum status memory_plan_check_length(const struct recipe *recipe);
/* NOT_SUPPORTED, with the keys that make a step too long for a tape. */
enum status memory_plan_too_long(const struct recipe *recipe);

/* Checks the memory that the ranks on this machine need for weights, gradients and moments before it is
 * allocated: Linux overcommits, and the OOM killer ends this process or another. */
MUST_USE enum status memory_plan_check_host(const struct recipe *recipe);
