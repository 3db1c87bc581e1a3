// SPDX-License-Identifier: Apache-2.0
/* Loads a recipe and chooses the values that it leaves open with `auto`:
 *
 *   open keys ── their values ──> sweep (sweep/sweep.h) ── shortest step that fits ──> overrides ──> recipe
 *
 * A layout does not change results, so it may be chosen. The choice is a function of the recipe, its profile
 * and the number of ranks, and therefore the same on every rank. */
#pragma once

#include "base/text.h"
#include "planner/recipe/planned_recipe.h"
#include "trainer/recipe/recipe.h"

struct choose_options {
    const char *path;
    const char *const *overrides;
    size_t override_count;
    int world_size; // number of ranks of the launcher; 0: no launcher
    bool files;     // a missing file that the recipe names is an error
    bool best;      // choose every key that can be chosen and is not given
    void (*progress)(void *context, const char *what, int64_t done, int64_t count); // NULL: none
    void *context;
};

struct chosen {
    struct text keys;              // "train.micro_batch_size=4 ..."; empty: the recipe is complete
    int64_t layouts, valid, fits;  // considered; of these valid; of these fit
    double step_s;                 // predicted
    bool own;                      // with `best`: the layout of the recipe itself, and none is faster
    struct recipe_names overrides; // with these, planned_recipe_load() makes the same recipe
};

/* As planned_recipe_load(); also BAD_RECIPE if no layout is valid or fits. On OK, call chosen_free(). */
MUST_USE enum status choose_load(const struct choose_options *options, struct recipe **out,
                                 struct chosen *chosen, struct problems *problems);
void chosen_free(struct chosen *chosen);

/* Whether the override "key=value" sets one of `keys`, under any of its names. */
bool override_sets_any(const char *override, const char *const *keys, int count);

/* ---- choose_layers.c ---- */

/* Uneven numbers of layers per stage, which may give a shorter step if the number of layers is not a multiple
 * of the stages, or if the head is about as expensive as a layer.
 *
 *   32 layers, 4 stages, a head like 1 layer:   8 8 8 8  ──>  8 9 8 7,  8 8 9 7,  7 9 8 8,  7 9 9 7 */

/* Appends candidates for pipeline.layout, "[8, 9, 8, 7], [8, 8, 9, 7]", other than that of the recipe;
 * nothing if none can be better. */
void choose_layers(const struct recipe *recipe, struct text *out);
