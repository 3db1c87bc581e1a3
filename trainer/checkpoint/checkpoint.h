// SPDX-License-Identifier: Apache-2.0
/* Checkpoints: the training state on disk under global tensor names, so that any layout can resume from
 * any other.
 *
 *     checkpoints/step-00000100/rank-00000.safetensors     written by rank 0: values and Adam moments
 *                               rank-00001.safetensors     ...
 *                               recipe.yaml                the resolved recipe
 *                               manifest.json              written last: all shards, and their checksums
 *
 * One save (load.h has one load):
 *
 *     checkpoint_begin          store.c: store_begin on rank 0, step-N.partial; all ranks get its ticket
 *       rank_writer_create      distribute/save_plan.c: the slices of this rank, as shards
 *       rank_writer_begin       writer.c: band by band, format/rank_file.c, safetensors_writer.c
 *       rank_writer_finish      the rest and the header; then the note of this rank, distribute/coverage.c
 *     checkpoint_finish         metadata_files.c: rank 0 gathers the notes and checks the coverage
 *       store_publish           after the manifest: renames the folder; then store_prune
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
