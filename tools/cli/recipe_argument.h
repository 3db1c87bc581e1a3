// SPDX-License-Identifier: Apache-2.0
/* What every command that takes a recipe does first. */
#pragma once

#include "trainer/recipe/recipe.h"

/* argv[1] is the recipe, the rest are key=value. `alone`: the world is the product of the degrees even under
 * a launcher. Prints all problems on standard error. Returns 0, or the exit status. *size: of the world, 0
 * for the launcher's. */
int recipe_argument(int argc, char **argv, bool alone, struct recipe **recipe, int *size);

/* The same recipe on one rank: every key of the sections parallel, pipeline and memory has its value of one
 * rank, except those in `more`: further overrides, the last one NULL; or NULL. Overrides of the same keys in
 * argv, by any of their names, are dropped. */
int recipe_argument_one_rank(int argc, char **argv, const char *const *more, struct recipe **recipe);

/* The exit status that a status ends a command with, after its one line on standard error. */
int exit_status(enum status status);

/* The same for what was wrong with what was named, before any work began: 2 where that is 1, but for a
 * machine without memory. */
int exit_status_of_input(enum status status);

/* The same for a status that every process of a launcher has alike: rank 0 says the line. */
int exit_status_of_world(enum status status);
