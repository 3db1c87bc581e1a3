// SPDX-License-Identifier: Apache-2.0
/* Scales a published run down so that it fits on a small machine: the same schedule, recomputation, ZeRO
 * stage and kinds of parallelism, with fewer ranks and a smaller model.
 *
 *   GPT 145.6B, tp 8 pp 8 dp 24, 80 layers of 12288  ──>  tp 2 pp 2 dp 2, 4 layers of 192 */
#pragma once

#include "trainer/recipe/recipe.h"

/* Appends overrides that scale the recipe to at most `ranks` ranks (a power of two): degrees, model, batch,
 * fp32, and no assumptions about another program. Degrees above 1 stay above 1 if there are enough ranks. */
void table_scale(const struct recipe *recipe, int ranks, struct recipe_names *overrides);
