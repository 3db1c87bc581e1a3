// SPDX-License-Identifier: Apache-2.0
/* The model that a command uses, named by its first argument: a recipe (the newest checkpoint of its run), a
 * checkpoint, a folder with checkpoints or a run directory; then overrides key=value. A checkpoint contains a
 * copy of its recipe. */
#pragma once

#include "trainer/recipe/recipe.h"

struct model_request {
    const char *command, *example; // for messages: "generate", "--prompt TEXT"
    const char *const *words;      // the model, then overrides; at least one
    int count;
    const char *const *defaults; // overrides of keys that the words do not set, ending with NULL; NULL: none
    /* Overrides for one rank, ending with NULL, which replace those of the same keys
     * (recipe_argument_one_rank()). NULL: the recipe's layout, or that of the launcher. */
    const char *const *one_rank;
};

/* Prints errors on standard error. Returns 0, or the exit status. *size: ranks, as for recipe_argument(). The
 * caller frees *checkpoint and *recipe, also after a failure. */
int model_argument(const struct model_request *request, char **checkpoint, struct recipe **recipe, int *size);
