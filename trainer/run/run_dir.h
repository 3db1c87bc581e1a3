// SPDX-License-Identifier: Apache-2.0
/* The run directory (logging.run_dir). Only one run at a time writes in it; an earlier run is resumed or
 * refused, never overwritten silently. */
#pragma once

#include "trainer/recipe/recipe.h"

/* The initial state of a run. */
struct run_dir {
    int64_t newest; // step of the newest complete checkpoint in checkpoint.save; -1: none
    bool continues; // resumes from it: checkpoint.load is auto, or names an older one
    int64_t named;  // only newer checkpoints of the run are used: step of the one that checkpoint.load names;
                    // -1: all
    struct text from; // "step 7 is saved in runs/a/checkpoints"; empty: starts from scratch
};
void run_dir_free(struct run_dir *folder);

/* Returns BAD_RECIPE if the folder holds a run that this recipe does not resume, or an active run, or if
 * the checkpoint that it names is not a folder. A run without a complete checkpoint restarts from the
 * beginning. */
MUST_USE enum status run_dir_check(const struct recipe *recipe, struct run_dir *out);

/* Creates and locks the folder; the lock is held until the descriptor is closed or the process ends. Returns
 * BAD_RECIPE if another process holds the lock. Also creates the checkpoint folder, so that write errors
 * appear before the first save. */
MUST_USE enum status run_dir_claim(const struct recipe *recipe, int *descriptor);

/* After a failure to read or write a file of the folder: names the key, and what to do. */
enum status run_dir_explain(enum status status, const char *path);

/* Writes choices.txt: the kernels selected by the device at run time (device_choices()). */
MUST_USE enum status run_dir_write_choices(const struct recipe *recipe, const struct text *choices);

/* Writes recipe.yaml: every key with its value and origin. */
MUST_USE enum status run_dir_write_recipe(const struct recipe *recipe);
