// SPDX-License-Identifier: Apache-2.0
/* Checkpoints: the training state on disk under global tensor names, so that any layout can resume from
 * any other.
 *
 *     checkpoints/step-00000100/rank-00000.safetensors     written by rank 0: values and Adam moments
 *                               rank-00001.safetensors     ...
 *                               recipe.yaml                the resolved recipe
 *                               manifest.json              written last: all shards, and their checksums
 *
 *   save   every rank: its shards -> its file;   rank 0: manifest, then the name (store.h)
 *   load   every rank: manifest -> the shards that overlap its slices, checksums verified, -> device
 *
 * The step determines the rest: data order and dropout are functions of it; the learning rate also depends
 * on the steps skipped by fp16, which the manifest counts, next to the loss scale and its counters.
 * Loading needs nothing of the old layout, and padding is never written.
 *
 * Caution: these calls are collective, and a disk may fail on one rank only. Ranks agree on every
 * outcome. */
#pragma once

#include "trainer/engine/rank.h"

/* Collective: every rank returns the same status and, on failure, the same reason. Saves to
 * recipe->checkpoint.save and then removes older checkpoints according to keep_last. A failed save leaves
 * nothing under its final name. On a device that does not compute, there is nothing to save. */
MUST_USE enum status checkpoint_save(struct rank_state *state);

/* With checkpoint.async_save: allocates the host memory for the copy of the state, state->staging,
 * of the size of this rank's file or checkpoint.staging_mb, whichever is smaller, and creates a stream for
 * it; rank_destroy() frees both. */
MUST_USE enum status checkpoint_reserve(struct rank_state *state);

/* A save that continues in the background. The state of this step is copied to host memory: by a thread of
 * each rank, or on a GPU in a stream. That thread then computes checksums and writes. Beginning and finishing
 * are collective, like checkpoint_save(); between them:
 *
 *     forward and backward passes; checkpoint_hold_update; optimizer; checkpoint_end_copy; further steps
 *
 * One save at a time. */
struct checkpoint_saving;
/* *out: NULL on failure, and on a device that does not compute. in_background false: returns when this
 * rank's file is written. */
MUST_USE enum status checkpoint_begin(struct rank_state *state, bool in_background,
                                      struct checkpoint_saving **out);
/* What is submitted to the compute stream from now on runs after the copy, and may change the state. Blocks
 * the host only if the thread copies. */
MUST_USE enum status checkpoint_hold_update(struct checkpoint_saving *saving);
/* Waits until the state is copied; the thread can then write it. */
MUST_USE enum status checkpoint_end_copy(struct checkpoint_saving *saving);
/* True once this rank's file is written, or its writing has failed; also for NULL. */
bool checkpoint_is_written(const struct checkpoint_saving *saving);
/* Waits until all files are written, publishes the checkpoint, and frees `saving`, which may be NULL. */
MUST_USE enum status checkpoint_finish(struct checkpoint_saving *saving);

/* Finds the newest complete checkpoint in the folder; *out is NULL if there is none. The caller frees it.
 * Incomplete ones are skipped with a line each on standard error. */
MUST_USE enum status checkpoint_find(const char *save_folder, char **out);

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
