// SPDX-License-Identifier: Apache-2.0
/* Recipe arguments, shared by all commands that take a recipe. */
#pragma once

#include "planner/choose/choose.h"

/* Reads the recipe argv[1] with overrides key=value from the rest. `alone`: the world size is the product
 * of the degrees even under a launcher. Prints all problems on standard error. Returns 0, or the exit
 * status. *size: world size, 0: that of the launcher. */
int recipe_argument(int argc, char **argv, bool alone, struct recipe **recipe, int *size);

struct recipe_request {
    bool alone;   // as above
    bool quiet;   // print neither warnings nor the choice
    bool preview; // nothing is started: files that the recipe names may be missing here
    bool best;    // choose every key that a plan can choose and that is not given
};
/* Same; also returns the choice. If 0 is returned, call chosen_free(). */
int recipe_argument_choose(int argc, char **argv, const struct recipe_request *request,
                           struct recipe **recipe, struct chosen *chosen, int *size);

/* Reads the same recipe for one rank: layout keys have their single-rank values, except those in `more`,
 * further overrides ending with NULL; may be NULL. Overrides of the same keys in argv are dropped, under
 * any of their names. */
int recipe_argument_one_rank(int argc, char **argv, const char *const *more, struct recipe **recipe);

/* Whether one of the words key=value sets the key of `override`, under any of its names. */
bool recipe_argument_sets(const char *override, const char *const *words, int count);

/* Prints the error of a status on standard error, and returns the exit status of the command. */
int exit_status(enum status status);

/* Same for errors in the arguments, before any work began: 2 instead of 1, except if memory is exhausted. */
int exit_status_of_input(enum status status);

/* Same for a status that all processes of a launcher share: only rank 0 prints the line. */
int exit_status_of_world(enum status status);
