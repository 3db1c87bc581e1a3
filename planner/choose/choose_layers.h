// SPDX-License-Identifier: Apache-2.0
/* Uneven numbers of layers per stage, which may give a shorter step if the number of layers is not a multiple
 * of the stages, or if the head is about as expensive as a layer.
 *
 *   32 layers, 4 stages, a head like 1 layer:   8 8 8 8  ──>  8 9 8 7,  8 8 9 7,  7 9 8 8,  7 9 9 7 */
#pragma once

#include "base/text.h"
#include "trainer/recipe/recipe.h"

/* Appends candidates for pipeline.layout, "[8, 9, 8, 7], [8, 8, 9, 7]", other than that of the recipe;
 * nothing if none can be better. */
void choose_layers(const struct recipe *recipe, struct text *out);
