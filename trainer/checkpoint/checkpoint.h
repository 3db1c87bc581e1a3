// SPDX-License-Identifier: Apache-2.0
/* Checkpoints: what a run knows, on disk, by global names, so that any layout can go on from what another
 * wrote.
 *
 *     checkpoints/step-00000100/rank-00000.safetensors     what rank 0 writes: values and Adam's moments
 *                               rank-00001.safetensors     ...
 *                               recipe.yaml                the resolved recipe
 *                               manifest.json              last: all pieces, and their checksums
 *
 *   save   every rank: its pieces -> its file;   rank 0: manifest, then the name (checkpoint_folder.h)
 *   load   every rank: manifest -> the pieces that its slices overlap, checksums compared, -> device
 *
 * The step is all else there is to remember: the order of the data and dropout are functions of it, and the
 * learning rate of it and the steps that fp16 has skipped, which the manifest counts, beside the loss scale
 * and how far it is from changing. Nothing of a layout is needed to load, and padding is never written.
 *
 * The trap: these calls are collective, and a disk fails on one rank only. Every outcome is agreed on. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Collective: every rank returns the same status and, where it failed, the same reason. Into
 * recipe->checkpoint.save, whose older checkpoints are removed as keep_last says when the new one is
 * complete. A save that fails leaves nothing under its final name. A device that does not compute has nothing
 * to save. */
MUST_USE enum status checkpoint_save(struct rank_state *state);

/* The newest complete checkpoint in the folder; *out NULL when there is none. The caller frees it. Those that
 * are not complete are skipped, with a line each on standard error. */
MUST_USE enum status checkpoint_find(const char *save_folder, char **out);

/* `path` itself when it is a checkpoint, else the newest in it; the caller frees it. BAD_CHECKPOINT when
 * there is neither. */
MUST_USE enum status checkpoint_resolve(const char *path, char **out);

/* Collective, as checkpoint_save. `path` as for checkpoint_resolve, the same on all ranks. BAD_CHECKPOINT
 * when it is torn, of another model, or lacks a tensor; the worker is then good for nothing. To train on,
 * with the optimizer, the first rank warns of each key of the mathematics that is not what made the
 * checkpoint. */
MUST_USE enum status checkpoint_load(struct rank_state *state, const char *path, bool with_optimizer);

/* Collective: loads the newest checkpoint in recipe->checkpoint.save that every rank can load, with the
 * optimizer. One that is broken is passed over for the next older one, and set aside as step-N.broken; one of
 * another model is not. *out: its path, for the caller to free; NULL: the folder has none. BAD_CHECKPOINT
 * when it has some, and all are broken. */
MUST_USE enum status checkpoint_continue(struct rank_state *state, char **out);

/* The recipe that made a checkpoint: the path of its copy. `path` as for checkpoint_resolve. */
MUST_USE enum status checkpoint_recipe_path(const char *path, char **out);
