// SPDX-License-Identifier: Apache-2.0
/* The data and the tokenizer that a recipe names. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/recipe/recipe.h"
#include "trainer/tokenizer/tokenizer.h"

/* Creates the tokenizer selected by the recipe. */
MUST_USE enum status recipe_create_tokenizer(const struct recipe *recipe, struct tokenizer **out);
MUST_USE enum status recipe_open_data(const struct recipe *recipe, struct data **out);
