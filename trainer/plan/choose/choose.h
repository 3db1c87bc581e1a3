// SPDX-License-Identifier: Apache-2.0
/* Loads a recipe and chooses the values that it leaves open with `auto`:
 *
 *   open keys ── their values ──> sweep (sweep/sweep.h) ── shortest step that fits ──> overrides ──> recipe
 *
 * A layout changes no result, so it may be chosen. The choice is a function of the recipe, its profile and
 * the number of ranks: equal on every rank. */
#pragma once

#include "base/text.h"
#include "trainer/recipe/recipe.h"

struct choose_options {
    const char *path;
    const char *const *overrides;
    size_t override_count;
    int world_size; // the launcher's number of ranks; 0: alone
    bool files;     // a missing file that the recipe names is an error
    bool best;      // choose all that can be chosen, and is not given
    void (*progress)(void *context, const char *what, int64_t done, int64_t count); // NULL: none
    void *context;
};

struct chosen {
    struct text keys;              // "train.micro_batch_size=4 ..."; empty: the recipe is complete
    int64_t layouts, legal, fits;  // considered; allowed by the rules; of these, that fit
    double step_s;                 // predicted
    struct recipe_names overrides; // with which recipe_load() makes the recipe
};

/* As recipe_load(). BAD_RECIPE also if no layout is legal or fits. chosen_free() on OK. */
MUST_USE enum status choose_load(const struct choose_options *options, struct recipe **out,
                                 struct chosen *chosen, struct problems *problems);
void chosen_free(struct chosen *chosen);
