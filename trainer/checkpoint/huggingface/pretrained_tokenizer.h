// SPDX-License-Identifier: Apache-2.0
/* The tokenizer.json in the folder of an imported checkpoint. The recipe's tokenizer.tokenizer_model names it
 * by its path at import, which no longer holds after the folder is moved, or from another current folder. */
#pragma once

#include "base/text.h"
#include "trainer/recipe/recipe.h"

/* Appends the path of the file in the checkpoint's folder that has the base name of
 * tokenizer.tokenizer_model. Returns false if there is none, or the recipe's tokenizer has another type. */
bool pretrained_tokenizer_in(const char *folder, const struct recipe *recipe, struct text *out);
