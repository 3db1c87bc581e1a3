// SPDX-License-Identifier: Apache-2.0
/* The checkpoint of a run with the lowest validation loss, for checkpoint.keep_best: SAVE/best is a symbolic
 * link to it, such as step-00000040. What is best follows from the manifests alone, which have the validation
 * loss of their step: the link can be removed or lost. It is renewed, by a rename, when a better checkpoint
 * has its final name and before anything is removed, so that it leads to a complete checkpoint after a crash
 * at any moment. Of equal losses the first is best; a checkpoint without a finite one is never best. Called
 * by rank 0 only. */
#pragma once

#include "trainer/checkpoint/store.h"

struct best_checkpoint {
    int64_t step; // -1: none
    double loss;
};

/* Compares all complete checkpoints of the run that owns SAVE, and renews the link. If only the link fails,
 * *out is still set. */
MUST_USE enum status best_find(const char *save, struct best_checkpoint *out);

/* The target of the link; none if it is not a complete checkpoint of this run with a loss. */
struct best_checkpoint best_read(const char *save);

/* The best of the target of the link and of a checkpoint that has just been published; renews the link. *out
 * as for best_find(). */
MUST_USE enum status best_update(const char *save, const struct manifest *published,
                                 struct best_checkpoint *out);

/* Removes a link whose target is gone. */
void best_remove_dangling(const char *save);
