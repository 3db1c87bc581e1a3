// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/table/table.h"
#include "trainer/plan/table/table_scale.h"

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

/* GPUs by words in their names, the more specific ones first. */
static const struct known_gpu {
    const char *word, *other, *profile;
} known_gpus[] = {
    {"GB200", "", "gb200-nvl72"}, {"B200", "", "dgx-b200"},      {"H200", "", "dgx-h200"},
    {"H100", "", "dgx-h100"},     {"A100", "40", "dgx-a100-40"}, {"A100", "", "dgx-a100-80"},
    {"V100", "", "dgx-v100-32"},
};

static const struct known_gpu *known_gpu(const char *name)
{
    for (size_t i = 0; i < sizeof known_gpus / sizeof *known_gpus; i++)
        if (strstr(name, known_gpus[i].word) != NULL && strstr(name, known_gpus[i].other) != NULL)
            return &known_gpus[i];
    return NULL;
}

/* The shipped profile for the name of a GPU; NULL: none. */
static const char *profile_of_gpu(const char *gpu)
{
    const struct known_gpu *known = known_gpu(gpu);
    return known != NULL ? known->profile : NULL;
}

bool table_row_has_gpu(const struct published_row *row, const char *device)
{
    const struct known_gpu *of_row = known_gpu(row->cell[PUBLISHED_GPU_TYPE]), *other = known_gpu(device);
    return of_row == NULL || other == NULL || strcmp(of_row->word, other->word) == 0;
}

static void set_profile(struct recipe_names *overrides, const char *name)
{
    struct text override = {0};
    text_add(&override, "cluster.profile=%s", name);
    overrides_set(overrides, override.chars);
    text_free(&override);
}

static enum status load(const struct table_options *options, const struct recipe_names *overrides,
                        struct recipe **out, struct problems *problems)
{
    const char *const *list = (const char *const *)overrides->list;
    if (options->base.yaml == NULL)
        return recipe_load(options->base.name, list, overrides->count, 0, out, problems);
    return recipe_load_text(options->base.name, options->base.yaml, list, overrides->count, 0, out, problems);
}

/* Loads a row's recipe, with the profile of its GPU if nothing else gives one. */
static struct recipe *load_with_profile(const struct table_options *options, struct published_recipe *made,
                                        const struct published_row *row)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    if (load(options, &made->overrides, &recipe, &problems) == OK && recipe->cluster.profile == NULL &&
        profile_of_gpu(row->cell[PUBLISHED_GPU_TYPE]) != NULL) {
        recipe_destroy(recipe);
        recipe = NULL;
        set_profile(&made->overrides, profile_of_gpu(row->cell[PUBLISHED_GPU_TYPE]));
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
        overrides_set(&made->overrides, options->overrides[i]);
    recipe_destroy(recipe);
    (void)!load(options, &made->overrides, &small, &problems);
    add_reason(&made->reason, &problems);
    problems_free(&problems);
    return small;
}

static struct recipe *make(const struct table_options *options, const struct published_row *row, int layers,
                           struct published_recipe *made)
{
    struct recipe *recipe;
    struct text more = {0};
    if (options->base.infers)
        published_recipe_infer(row, made);
    overrides_set(&made->overrides, "cluster.device=dry");
    if (options->profile != NULL)
        set_profile(&made->overrides, options->profile);
    for (size_t i = 0; i < options->override_count; i++)
        overrides_set(&made->overrides, options->overrides[i]);
    text_add(&more, "model.num_layers=%.0f", row->number[PUBLISHED_LAYERS] + layers);
    if (layers > 0)
        overrides_set(&made->overrides, more.chars);
    text_free(&more);
    recipe = load_with_profile(options, made, row);
    if (recipe != NULL)
        published_recipe_check(made, recipe);
    if (recipe != NULL && recipe->cluster.profile == NULL)
        text_add(&made->reason, "%sno cluster profile; use --profile NAME",
                 made->reason.length > 0 ? "; " : "");
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
