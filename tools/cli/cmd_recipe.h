// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid recipe RECIPE [key=value ...]   prints the resolved recipe
 * cuboid recipe --reference              prints docs/recipe.md
 * argv[0] is "recipe". Returns the exit status. */
int cmd_recipe(int argc, char **argv);
