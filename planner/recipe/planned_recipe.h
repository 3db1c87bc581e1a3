// SPDX-License-Identifier: Apache-2.0
/* Recipes of a program that can plan: with the section `assume`, which training rejects, and with values of
 * the cluster profile that cluster.profile names.
 *
 *   enum status status = planned_recipe_load("a.yaml", overrides, count, 0, &recipe, &problems);
 *   ...
 *   assumptions_of(recipe)->attention
 *
 * The trainer knows neither: its recipes are loaded by recipe_load(). */
#pragma once

#include "planner/assume/assume.h"
#include "trainer/recipe/recipe.h"

/* The section `assume`, for functions that find keys by name. */
extern const struct recipe_addition planner_keys;

/* recipe_load() with these keys. */
MUST_USE enum status planned_recipe_load(const char *path, const char *const *overrides,
                                         size_t override_count, int world_size, struct recipe **out,
                                         struct problems *problems);
/* The same for text in memory; `name` stands for its path. */
MUST_USE enum status planned_recipe_load_text(const char *name, const char *text,
                                              const char *const *overrides, size_t override_count,
                                              struct recipe **out, struct problems *problems);

/* The defaults for a recipe without the section. */
const struct assumptions *assumptions_of(const struct recipe *recipe);
/* Appends the keys of the section that are not the defaults: "assume.attention=unfused ..."; nothing if there
 * are none. */
void planned_assumed_text(const struct recipe *recipe, struct text *out);

/* ---- members of planner_keys ---- */

/* Checks cluster.profile, and fills logging.peak_flops, cluster.gpus_per_node and cluster.dry_device from it
 * unless given; false with a problem if the profile cannot be used. */
bool planned_recipe_profile(struct recipe *recipe, void **kept, struct problems *problems);
void planned_recipe_release(void *kept);
