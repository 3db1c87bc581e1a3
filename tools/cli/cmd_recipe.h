// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid recipe RECIPE [key=value ...]   the recipe as it is understood, on standard output
 * cuboid recipe --reference              docs/recipe.md
 * argv[0] is "recipe". Returns the exit status. */
int cmd_recipe(int argc, char **argv);
