// SPDX-License-Identifier: Apache-2.0
#include "planner/profile/gpu_type.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/table/table.h"

#include <string.h>

/* Appends the first problem, without its location on the command line. */
static void add_reason(struct text *reason, const struct problems *problems)
{
    for (size_t i = 0; i < problems->count; i++) {
        const char *text = problems->list[i].text;
        if (problems->list[i].warning)
            continue;
        text += strncmp(text, "command line: ", 14) == 0 ? 14 : 0;
        text_add(reason, "%s%s", reason->length > 0 ? "; " : "", text);
    }
}

bool table_row_has_gpu(const struct published_row *row, const char *device)
{
    const char *gpu = row->cell[PUBLISHED_GPU_TYPE];
    return published_is_missing(gpu) || gpu_type_matches(gpu, device);
}

static void set_profile(struct recipe_names *overrides, const char *name)
{
    struct text override = {0};
    text_add(&override, "cluster.profile=%s", name);
    overrides_set(&planner_keys, overrides, override.chars);
    text_free(&override);
}

static enum status load(const struct table_options *options, const struct recipe_names *overrides,
                        struct recipe **out, struct problems *problems)
{
    const char *const *list = (const char *const *)overrides->list;
    if (options->base.yaml == NULL)
        return planned_recipe_load(options->base.name, list, overrides->count, 0, out, problems);
    return planned_recipe_load_text(options->base.name, options->base.yaml, list, overrides->count, out,
                                    problems);
}

/* Loads a row's recipe, with the profile of its GPU if nothing else gives one. */
static struct recipe *load_with_profile(const struct table_options *options, struct published_recipe *made,
                                        const struct published_row *row)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    const char *shipped = gpu_type_profile(row->cell[PUBLISHED_GPU_TYPE]);
    if (load(options, &made->overrides, &recipe, &problems) == OK && recipe->cluster.profile == NULL &&
        shipped != NULL) {
        recipe_destroy(recipe);
        recipe = NULL;
        set_profile(&made->overrides, shipped);
        (void)!load(options, &made->overrides, &recipe, &problems);
    }
    add_reason(&made->reason, &problems);
    problems_free(&problems);
    return recipe;
}

/* Scales the recipe down; keys of the command line keep their values. */
static struct recipe *scale_down(const struct table_options *options, struct recipe *recipe,
                                 struct published_recipe *made)
{
    struct recipe *small = NULL;
    struct problems problems = {0};
    table_scale(recipe, options->ranks, &made->overrides);
    for (size_t i = 0; i < options->override_count; i++)
        overrides_set(&planner_keys, &made->overrides, options->overrides[i]);
    recipe_destroy(recipe);
    (void)!load(options, &made->overrides, &small, &problems);
    add_reason(&made->reason, &problems);
    problems_free(&problems);
    return small;
}

/* Why a row has no cluster profile. */
static void refuse_profile(const struct published_row *row, struct text *reason)
{
    const char *gpu = row->cell[PUBLISHED_GPU_TYPE];
    const bool missing = published_is_missing(gpu);
    text_add(reason, "%sno cluster profile%s%.60s; ", reason->length > 0 ? "; " : "",
             missing ? "" : " for gpu_type ", missing ? "" : gpu);
    text_add(reason, missing ? "fill in the column gpu_type (" : "known are ");
    gpu_type_names(reason);
    text_add(reason, "%s, or add --profile NAME (cuboid profile --list)", missing ? ")" : "");
}

static struct recipe *make(const struct table_options *options, const struct published_row *row, int layers,
                           struct published_recipe *made)
{
    struct recipe *recipe = NULL;
    struct text more = {0};
    if (options->base.infers)
        published_recipe_infer(row, made);
    overrides_set(&planner_keys, &made->overrides, "cluster.device=dry");
    if (options->profile != NULL)
        set_profile(&made->overrides, options->profile);
    for (size_t i = 0; i < options->override_count; i++)
        overrides_set(&planner_keys, &made->overrides, options->overrides[i]);
    text_add(&more, "model.num_layers=%.0f", row->number[PUBLISHED_LAYERS] + layers);
    if (layers > 0)
        overrides_set(&planner_keys, &made->overrides, more.chars);
    text_free(&more);
    if (options->base.has_no_model)
        published_recipe_check_whole(made);
    if (made->reason.length == 0)
        recipe = load_with_profile(options, made, row);
    if (recipe != NULL)
        published_recipe_check(made, recipe);
    if (recipe != NULL && recipe->cluster.profile == NULL)
        refuse_profile(row, &made->reason);
    return recipe != NULL && options->ranks > 0 && made->reason.length == 0
               ? scale_down(options, recipe, made)
               : recipe;
}

struct recipe *table_row_recipe(const struct table_options *options, const struct published_row *row,
                                int layers, struct text *reason)
{
    struct recipe *recipe = NULL;
    struct published_recipe made;
    published_recipe_make(row, &made);
    if (made.reason.length == 0)
        recipe = make(options, row, layers, &made);
    text_add(reason, "%s", text_chars(&made.reason));
    if (made.reason.length > 0) {
        recipe_destroy(recipe);
        recipe = NULL;
    }
    published_recipe_free(&made);
    return recipe;
}
