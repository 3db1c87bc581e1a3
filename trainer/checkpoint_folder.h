// SPDX-License-Identifier: Apache-2.0
/* The folder of checkpoints, and how one appears in it.
 *
 *     checkpoints/step-00000100/              complete: it has a whole manifest
 *     checkpoints/step-00000200.partial/      being written, or left behind by a run that was killed
 *     checkpoints/step-00000200.old/          an older one of the same step, for the moment of the exchange
 *     checkpoints/step-00000050.removed/      on its way out
 *     checkpoints/step-00000300.broken/       could not be loaded, and was passed over for an older one: kept
 *
 * A checkpoint is written under .partial and gets its name when it is complete; what is removed loses its
 * name first. So a crash at any moment leaves the complete ones complete, and the next save clears the rest
 * away. Only folders named like this are ever touched. All of these are for one rank: the first. */
#pragma once

#include "base/text.h"

/* SAVE/step-00000100 and a suffix ("" or ".partial"). */
void folder_of_step(const char *save, int64_t step, const char *suffix, struct text *out);

/* Makes SAVE and in it an empty .partial of this step; what earlier runs left behind goes. */
MUST_USE enum status folder_begin(const char *save, int64_t step);
/* Gives the .partial its name. */
MUST_USE enum status folder_publish(const char *save, int64_t step);
/* Removes the .partial, as far as that goes: for a save that failed. */
void folder_abandon(const char *save, int64_t step);
/* Of the complete ones up to `step`, keeps the newest `keep`; a line on standard error where it cannot. */
void folder_prune(const char *save, int64_t step, int64_t keep);

/* The newest complete checkpoint of a step below `below`; *step -1 where there is none. What is passed over
 * on the way there gets a line each in `skipped`. */
MUST_USE enum status folder_newest(const char *save, int64_t below, int64_t *step, struct text *skipped);
/* A run goes on from `step`, since no later one could be loaded: those lose their names, so that they are
 * neither counted as checkpoints nor written over. A line each on standard error. */
void folder_set_aside(const char *save, int64_t step);

/* True for the one rank of the whole job that prints. */
bool folder_speaks(void);
