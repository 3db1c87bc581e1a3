// SPDX-License-Identifier: Apache-2.0
/* Other numbers of layers per stage than the even ones, where they may give a shorter step: the number of
 * layers is no multiple of the stages, or the head is about as expensive as a layer.
 *
 *   32 layers, 4 stages, a head like 1 layer:   8 8 8 8  ──>  8 9 8 7,  8 8 9 7,  7 9 8 8,  7 9 9 7 */
#pragma once

#include "base/text.h"
#include "trainer/recipe/recipe.h"

/* Appends values of pipeline.layout, "[8, 9, 8, 7], [8, 8, 9, 7]", without that of the recipe; nothing if
 * there is no reason for another one. */
void choose_layers(const struct recipe *recipe, struct text *out);
