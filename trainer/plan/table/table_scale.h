// SPDX-License-Identifier: Apache-2.0
/* A published run at a scale that fits a machine: the same schedule, recomputation, ZeRO stage and kinds of
 * parallelism, with fewer ranks and a smaller model.
 *
 *   GPT 145.6B, tp 8 pp 8 dp 24, 80 layers of 12288  ──>  tp 2 pp 2 dp 2, 4 layers of 192 */
#pragma once

#include "trainer/recipe/recipe.h"

/* Sets the overrides that make the recipe fit on at most `ranks` ranks (a power of two): degrees, model,
 * batch, fp32, and nothing assumed of another program. Each degree above 1 stays above 1 if there are enough
 * ranks. */
void table_scale(const struct recipe *recipe, int ranks, struct recipe_names *overrides);
