// SPDX-License-Identifier: Apache-2.0
/* The folder of checkpoints, and how one appears in it.
 *
 *     checkpoints/run.json                    whose folder this is (checkpoint_record.h)
 *     checkpoints/step-00000100/              complete: it has a whole manifest
 *     checkpoints/step-00000200.partial/      being written, or left by a run that was killed
 *     checkpoints/step-00000050.removed/      being removed
 *     checkpoints/step-00000150.replaced/     complete, and being replaced by another save of its step
 *     checkpoints/step-00000300.broken/       could not be loaded; an older one was loaded instead: kept
 *     checkpoints/step-00000400.old/          had the name of a new one, but is not of this run: kept
 *
 * A checkpoint is written under .partial and gets its name when it is complete; what is removed loses its
 * name first. Both names are recorded before they appear, so a crash at any moment leaves the complete ones
 * complete, and the next save removes the rest. Only folders that this run has recorded are removed, and
 * complete checkpoints only if their manifest has this run's identity; a symbolic link is unlinked, and its
 * target is not touched.
 *
 * A checkpoint of a step that was saved before is replaced by one renameat2(RENAME_EXCHANGE). Some file
 * systems (NFS, Lustre, overlay) do not support it. There the older one is recorded as .replaced and renamed
 * to it, then the new one gets the name. Wherever this stops, the step has a complete checkpoint: under its
 * name, or under the recorded one, where it is found and from where folder_clean() renames it back. All of
 * these functions are for one rank: the first. */
#pragma once

#include "trainer/checkpoint/format/checkpoint_file.h"

/* SAVE/step-00000100 and a suffix ("" or ".partial"). */
void folder_of_step(const char *save, int64_t step, const char *suffix, struct text *out);

/* One save: its identity and its folder: .partial, or .partial-2 and so on when something else has that
 * name. */
struct save_ticket {
    struct save_identity identity;
    int attempt; // from 1 on; 0: none was begun
};
void folder_of_ticket(const char *save, const struct save_ticket *ticket, struct text *out);

/* Makes SAVE and in it an empty folder for this step; removes what this run left when it was killed. */
MUST_USE enum status folder_begin(const char *save, int64_t step, struct save_ticket *out);
/* Gives the folder its name. */
MUST_USE enum status folder_publish(const char *save, const struct save_ticket *ticket);
/* Removes the folder, as far as that goes: for a save that failed. */
void folder_abandon(const char *save, const struct save_ticket *ticket);
/* Of this run's complete checkpoints up to this step, keeps the newest `keep`; a line on standard error where
 * it cannot. 0: all are kept. The save is over then: nothing is unfinished. */
void folder_prune(const char *save, const struct save_ticket *ticket, int64_t keep);
/* Removes what this run has recorded as unfinished, and ends a replacement that was interrupted. IO_ERROR
 * names a replaced checkpoint that cannot get its name back; its record stays. */
MUST_USE enum status folder_clean(const char *save);

/* The newest complete checkpoint of a step below `below`; *step -1 where there is none. What is passed over
 * on the way there gets a line each in `skipped`. */
MUST_USE enum status folder_newest(const char *save, int64_t below, int64_t *step, struct text *skipped);
/* A run goes on from `step`, since no later one could be loaded: those lose their names, so that they are
 * neither counted as checkpoints nor written over. A line each on standard error. */
void folder_set_aside(const char *save, int64_t step);

/* True for the one rank of the whole job that prints. */
bool folder_is_primary(void);
