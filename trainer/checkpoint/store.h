// SPDX-License-Identifier: Apache-2.0
/* The checkpoint folder, and how a checkpoint is published in it.
 *
 *     checkpoints/run.json                    the run that owns the folder (run_record.h)
 *     checkpoints/step-00000100/              complete: it has a whole manifest
 *     checkpoints/step-00000200.partial/      being written, or left by a run that was killed
 *     checkpoints/step-00000050.removed/      being removed
 *     checkpoints/step-00000150.replaced/     complete, and being replaced by another save of its step
 *     checkpoints/step-00000300.broken/       could not be loaded; an older one was loaded instead: kept
 *     checkpoints/step-00000400.old/          had the name of a new one, but is not of this run: kept
 *     checkpoints/best                        link to the one with the lowest loss (best.h)
 *
 * A checkpoint is written under .partial and renamed when it is complete; before removal a checkpoint is
 * renamed. Both names are recorded before they appear, so a crash at any moment leaves complete checkpoints
 * complete, and the next save removes the rest. Only folders recorded by this run are removed, and complete
 * checkpoints only if their manifest has this run's identity; a symbolic link is unlinked, and its target
 * is not touched.
 *
 * A checkpoint of a step that was saved before is replaced by one renameat2(RENAME_EXCHANGE). Some file
 * systems (NFS, Lustre, overlay) do not support it. There the older one is recorded as .replaced and
 * renamed, then the new one is renamed to the final name. After an interruption at any point, the step has
 * a complete checkpoint: under its final name, or under the recorded one, where it is found and from where
 * store_clean() renames it back. All of these functions are called by rank 0 only. */
#pragma once

#include "trainer/checkpoint/format/manifest.h"

/* Formats SAVE/step-00000100 and a suffix ("" or ".partial"). */
void store_of_step(const char *save, int64_t step, const char *suffix, struct text *out);

/* One save: its identity and its folder: .partial, or .partial-2 and so on if that name is in use. */
struct save_ticket {
    struct save_identity identity;
    int attempt; // counts from 1; 0: not begun
};
void store_of_ticket(const char *save, const struct save_ticket *ticket, struct text *out);

/* Creates SAVE and in it an empty folder for this step; removes the remains of interrupted saves of this
 * run. */
MUST_USE enum status store_begin(const char *save, int64_t step, struct save_ticket *out);
/* Renames the folder to its final name. */
MUST_USE enum status store_publish(const char *save, const struct save_ticket *ticket);
/* Removes the folder of a failed save, as far as possible. A failure may be ignored: the next save
 * removes what remains. */
enum status store_abandon(const char *save, const struct save_ticket *ticket);
/* Keeps the newest `keep` complete checkpoints of this run up to this step, the one of step `best` (-1:
 * none), and those whose step is a multiple of `retain` (0: none), which do not count; removes the others.
 * keep 0: keeps all. Prints a line on standard error for one that it cannot remove. This ends the save:
 * nothing is unfinished. */
void store_prune(const char *save, const struct save_ticket *ticket, int64_t keep, int64_t retain,
                 int64_t best);
/* Removes all complete checkpoints of this run but that of `step` (-1: none is kept), as far as possible; the
 * status of the first that it cannot remove. This ends the save: nothing is unfinished. */
MUST_USE enum status store_keep_only(const char *save, const char *run, int64_t step);
/* Removes the folders that this run has recorded as unfinished, and completes an interrupted replacement.
 * IO_ERROR names a replaced checkpoint that cannot be renamed back; its record is kept. */
MUST_USE enum status store_clean(const char *save);

/* Finds the newest complete checkpoint of a step below `below`; *step is -1 if there is none. `skipped`
 * gets a line for each one that was skipped. BAD_CHECKPOINT: it is of another format version. */
MUST_USE enum status store_newest(const char *save, int64_t below, int64_t *step, struct text *skipped);
/* The same, with its manifest, which the caller frees: {0} if there is none. */
MUST_USE enum status store_newest_manifest(const char *save, int64_t below, int64_t *step,
                                           struct manifest *manifest, struct text *skipped);
/* Finds the newest complete checkpoint in the folder; *out is NULL if there is none. The caller frees it.
 * Incomplete ones are skipped with a line each on standard error. */
MUST_USE enum status store_find(const char *save_folder, char **out);
/* Whether a step has a manifest, which may be damaged, or cannot be read. */
bool store_has_manifest(const char *save);
/* Call it when a run resumes from `step` because no later checkpoint could be loaded: renames the later
 * ones, so that they are neither counted as checkpoints nor overwritten. Prints a line each on standard
 * error. */
void store_set_aside(const char *save, int64_t step);

/* True for the one rank of the whole job that prints. */
bool is_job_rank_zero(void);
