// SPDX-License-Identifier: Apache-2.0
/* Loads a checkpoint (checkpoint.h) on any layout. One load:
 *
 *     checkpoint_load           checkpoint_resolve: the folder; checkpoint_reader_open: its manifest
 *       redistribute_load       distribute/load_plan.c: which rank reads, and which needs, each slice
 *         checkpoint_reader_find, _read    reader.c: the shards that intersect a slice; verifies checksums
 *         exchange_rows, put    distribute/redistribute.c: to the ranks that need them, then to the device
 *       state_load_amax, _loss_scale       replicated_state.c: one rank reads, all get it */
#pragma once

#include "trainer/engine/rank.h"

/* Sets *out to `path` itself if it is a checkpoint, else to the newest complete one in it, or in the folder
 * checkpoints of a run directory; the caller frees it. BAD_CHECKPOINT if there is none. */
MUST_USE enum status checkpoint_resolve(const char *path, char **out);

enum checkpoint_use {
    CHECKPOINT_WEIGHTS,  // for forward passes
    CHECKPOINT_FINETUNE, // also the weights only; the rows of a larger vocabulary are initialized
    CHECKPOINT_RESUME    // with the optimizer; rank 0 warns of each mathematics key that differs from the
                         // recipe of the checkpoint
};

/* Collective, like checkpoint_save(). `path` as for checkpoint_resolve(), the same on all ranks. Returns
 * BAD_CHECKPOINT if the checkpoint is damaged or lacks a tensor, WRONG_CHECKPOINT if it is of another model
 * or has no optimizer state; the rank state is then unusable. */
MUST_USE enum status checkpoint_load(struct rank_state *state, const char *path, enum checkpoint_use use);

/* Collective: loads the newest checkpoint of a step after `after` in `memory` (NULL: none) and in
 * recipe->checkpoint.save that every rank can load, with the optimizer. A damaged one in the folder is
 * renamed to step-N.broken and the next older one is tried; one of another model is an error. *out: its path,
 * freed by the caller; NULL: there is none. BAD_CHECKPOINT if all are damaged. */
struct memory_checkpoints;
MUST_USE enum status checkpoint_load_newest(struct rank_state *state, struct memory_checkpoints *memory,
                                            int64_t after, char **out);

/* Path of the recipe saved in a checkpoint. `path` as for checkpoint_resolve(). */
MUST_USE enum status checkpoint_recipe_path(const char *path, char **out);
/* Appends ", resharded from tp 2, pp 2, dp 2" if the checkpoint that the state was loaded from, at or in
 * `path`, was written on other degrees; nothing if it cannot be read. */
void checkpoint_add_resharded(const struct rank_state *state, const char *path, struct text *out);
