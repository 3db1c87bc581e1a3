// SPDX-License-Identifier: Apache-2.0
/* Many recipes that differ in a few keys, from a single read of the files. Each is the recipe that
 * recipe_load() makes of the same files and overrides, without its warnings, in microseconds.
 *
 *   struct recipe_variants *variants;
 *   TRY(recipe_variants_open("a.yaml", overrides, count, 0, &variants, &problems));
 *   struct recipe_change change = {recipe_key("tp"), node_scalar("4")};
 *   struct recipe *recipe;
 *   int rule;
 *   if (recipe_variant(variants, &change, 1, &recipe, &rule) != OK)
 *       ... recipe_rule_keys(rule), recipe_variant_explain() ...
 *   recipe_destroy(recipe);
 *   recipe_variants_close(variants);            // after all recipes, whose origins refer to it */
#pragma once

#include "trainer/files/yaml.h"
#include "trainer/recipe/recipe.h"

struct recipe_variants;

/* A key by its main name (recipe_key()), and its value. */
struct recipe_change {
    const char *key;
    const struct node *value;
};

/* Arguments as in recipe_load(). Errors across keys are not reported here, since a change may remove them. */
MUST_USE enum status recipe_variants_open(const struct recipe_addition *more, const char *path,
                                          const char *const *overrides, size_t override_count, int world_size,
                                          struct recipe_variants **out, struct problems *problems);
void recipe_variants_close(struct recipe_variants *variants); // takes NULL

/* The open keys, by their main names: those with the value `auto`, and with `parallel: auto` also the keys of
 * the layout that are not given. */
int recipe_variants_open_keys(const struct recipe_variants *variants, const char *keys[RECIPE_MAX_CHOSEN]);
/* The recipe given by files and overrides, before anything is derived. */
const struct recipe *recipe_variants_base(const struct recipe_variants *variants);

/* Whether a value is valid for a key by itself, and not `auto`, which a plan would have to choose; `why` is
 * the rest of a sentence that begins with the key. */
bool recipe_change_is_valid(const struct recipe_addition *more, const struct recipe_change *change,
                            struct text *why);

/* The recipe with the changes, of different keys. BAD_RECIPE: *rule is the first broken rule, or -1 if an
 * input of the recipe cannot be used. */
MUST_USE enum status recipe_variant(struct recipe_variants *variants, const struct recipe_change *changes,
                                    size_t count, struct recipe **out, int *rule);
/* Adds the problems of a variant, as recipe_load() does; this takes milliseconds. */
void recipe_variant_explain(struct recipe_variants *variants, const struct recipe_change *changes,
                            size_t count, struct problems *problems);

/* The keys that a rule reads, separated by spaces. */
const char *recipe_rule_keys(const struct recipe_addition *more, int rule);
