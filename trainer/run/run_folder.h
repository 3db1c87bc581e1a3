// SPDX-License-Identifier: Apache-2.0
/* A run's folder (logging.run_dir): one run at a time writes there, and an earlier one is continued or
 * refused, never overwritten silently. */
#pragma once

#include "trainer/recipe/recipe.h"

/* The initial state of a run. */
struct run_folder {
    int64_t newest;   // step of the newest complete checkpoint in checkpoint.save; -1: there is none
    bool continues;   // with that one: checkpoint.load is auto, or names an older one
    struct text from; // "step 7 is saved in runs/a/checkpoints"; empty: it starts from scratch
};
void run_folder_free(struct run_folder *folder);

/* BAD_RECIPE when the folder holds a run that this recipe does not continue, or that is still writing there,
 * or the checkpoint that it names is no folder. A run of which no complete checkpoint is left begins again.
 */
MUST_USE enum status run_folder_check(const struct recipe *recipe, struct run_folder *out);

/* Makes the folder and keeps it locked until the descriptor is closed, or the process ends however it ends.
 * BAD_RECIPE when another process has it. Makes the folder of checkpoints too: that they cannot be written is
 * not to be found out when there is one to write. */
MUST_USE enum status run_folder_claim(const struct recipe *recipe, int *descriptor);

/* choices.txt: which kernels a device has chosen where it had a choice (device_choices()). */
MUST_USE enum status run_folder_write_choices(const struct recipe *recipe, const struct text *choices);

/* recipe.yaml: every key with its value and origin. */
MUST_USE enum status run_folder_write_recipe(const struct recipe *recipe);
