// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_verify.h"

#include "planner/recipe/planned_recipe.h"
#include "planner/schedule/choose_schedule.h"

#include <math.h>
#include <string.h>

enum { OVERRIDES_CHARS = 4000 };

/* Whether a list of overrides, separated by spaces, sets the key of `override`. */
static bool sets_key_of(const char *list, const char *override)
{
    char name[RECIPE_KEY_CHARS];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(override, "="), override);
    const char *key = recipe_key(&planner_keys, name);
    for (const char *word = list; *(word += strspn(word, " ")) != 0; word += strcspn(word, " ")) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "= "), word);
        const char *other = recipe_key(&planner_keys, name);
        if (key != NULL && other != NULL && strcmp(key, other) == 0)
            return true;
    }
    return false;
}

/* `one`, and every layout key at its value on one rank unless `common` or `one` sets it. */
static void one_rank_overrides(const struct comparison *comparison, char out[OVERRIDES_CHARS])
{
    struct text all = {0}, override = {0};
    text_add(&all, "%s", comparison->one);
    for (int i = 0; recipe_one_rank_override(i, &override); i++) {
        if (!sets_key_of(comparison->common, override.chars) && !sets_key_of(comparison->one, override.chars))
            text_add(&all, " %s", override.chars);
        text_free(&override);
    }
    CHECK(all.length < OVERRIDES_CHARS);
    snprintf(out, OVERRIDES_CHARS, "%s", text_chars(&all));
    text_free(&all);
}

enum status tiny_verify(const struct tiny *tiny, const struct comparison *comparison, int steps,
                        struct step_observer injected, struct verify_report *report)
{
    struct verify_options options = {.steps = steps, .injected = injected};
    struct recipe *layout = NULL, *one = NULL;
    char one_rank[OVERRIDES_CHARS];
    one_rank_overrides(comparison, one_rank);
    const char *common = comparison->common;
    enum status status = tiny_recipe(tiny, comparison->family, common, comparison->layout, 0, &layout);
    if (status == OK)
        status = tiny_recipe(tiny, comparison->family, common, one_rank, 0, &one);
    struct planned_run planned[2] = {{.needs = NULL}};
    if (status == OK)
        status = planned_run_make(layout, -1, &planned[0]);
    if (status == OK)
        status = planned_run_make(one, -1, &planned[1]);
    options.layout = (struct verify_side){layout, planned[0].run.schedule, planned[0].needs};
    options.one_rank = (struct verify_side){one, planned[1].run.schedule, planned[1].needs};
    if (status == OK)
        status = verify(&options, report);
    planned_run_free(&planned[0]);
    planned_run_free(&planned[1]);
    recipe_destroy(layout);
    recipe_destroy(one);
    return status;
}

static const char *const quantity_names[QUANTITIES] = {
    [VERIFY_INITIAL] = "initial weight",
    [VERIFY_REPLICAS] = "replicas",
    [VERIFY_GRADIENT] = "gradient",
    [VERIFY_WEIGHT] = "weight",
    [VERIFY_M] = "m",
    [VERIFY_V] = "v",
    [QUANTITY_LOSS] = "loss",
    [QUANTITY_NORM] = "gradient norm",
};

const char *quantity_name(int quantity)
{
    return quantity_names[quantity];
}

double largest_ratio(const struct verify_report *report, int quantity, const char *row)
{
    double largest = 0.0;
    for (int s = 0; quantity >= VERIFY_QUANTITIES && s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        const double *pair = quantity == QUANTITY_LOSS ? step->loss : step->norm;
        double bound = quantity == QUANTITY_LOSS ? step->loss_bound : step->norm_bound;
        largest = fmax(largest, fabs(pair[0] - pair[1]) / bound);
    }
    for (int i = 0; quantity < VERIFY_QUANTITIES && i < report->rows; i++)
        if (row == NULL || strcmp(row, report->names[i]) == 0)
            largest = fmax(largest, report->worst[quantity][i].ratio);
    return largest;
}
