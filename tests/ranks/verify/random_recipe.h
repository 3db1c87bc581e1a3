// SPDX-License-Identifier: Apache-2.0
/* Random valid recipes: small models, optimizers, precisions and layouts of 2 to 8 ranks. A recipe is a
 * function of its number alone, so that a failure can be repeated by it. */
#pragma once

#include "tests/support/tiny.h"

enum { RANDOM_RECIPE_CHARS = 2000, RANDOM_RECIPE_RANKS = 8 };

/* Overrides: `common`, then `layout`; `one` for a run on one rank to compare with. */
struct random_recipe {
    enum tiny_family family;
    char common[RANDOM_RECIPE_CHARS], layout[RANDOM_RECIPE_CHARS], one[RANDOM_RECIPE_CHARS];
};

/* steps: to train. BAD_RECIPE if no draw was valid. */
MUST_USE enum status random_recipe(const struct tiny *tiny, uint64_t number, int steps,
                                   struct random_recipe *out);

/* Replaces the layout by another random one of the same model, optimizer, precision and batch. */
MUST_USE enum status random_recipe_layout(const struct tiny *tiny, uint64_t number,
                                          struct random_recipe *recipe);

/* Adds options to the layout, each that is valid with those before it: recomputation, offload,
 * post-validation, overlap, low-precision formats, more schedules, uneven stages. */
void random_recipe_options(const struct tiny *tiny, uint64_t number, struct random_recipe *recipe);
