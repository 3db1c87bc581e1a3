// SPDX-License-Identifier: Apache-2.0
#include "planner/advice/advice.h"

#include "planner/choose/choose.h"
#include "planner/sweep/sweep.h"
#include "trainer/recipe/recipe_table.h"

#include <stdlib.h>
#include <string.h>

/* The axes, and their names in a change. */
enum { AXES = 8, MAX_DEGREE = 128 };
static const char *const keys[AXES] = {"parallel.tensor_parallel_size",
                                       "parallel.pipeline_parallel_size",
                                       "parallel.data_parallel_size",
                                       "parallel.zero_stage",
                                       "memory.recompute_granularity",
                                       "train.micro_batch_size",
                                       "pipeline.schedule",
                                       "pipeline.virtual_stages"};
static const char *const names[AXES] = {"tp", "pp", "dp", NULL, NULL, NULL, NULL, NULL};

static void add_powers(int64_t most, struct text *out)
{
    for (int64_t i = 1; i <= most && i <= MAX_DEGREE; i *= 2)
        text_add(out, "%s%lld", i > 1 ? ", " : "", (long long)i);
}

/* The values of an axis: all degrees, and what saves memory. */
static void add_axis(const struct recipe *base, int axis, struct text *out)
{
    struct text now = {0};
    recipe_key_text(base, keys[axis], &now);
    text_add(out, "  %s: [", keys[axis]);
    if (axis == 0)
        add_powers(base->model.num_attention_heads, out);
    else if (axis == 1)
        add_powers(base->model.num_layers, out);
    else if (axis == 2)
        text_add(out, "auto");
    else if (axis == 3)
        text_add(out, "0, 1, 2, 3");
    else if (axis == 4)
        text_add(out, "none, selective, full");
    else
        text_add(out, "%s", now.chars);
    const char *const smallest = axis == 6 ? "1f1b" : "1";
    if (axis >= 5 && strcmp(now.chars, smallest) != 0)
        text_add(out, ", %s", smallest);
    text_add(out, "]\n");
    text_free(&now);
}

/* "tp=4 pp=16 parallel.zero_stage=3": the values that differ from those of the base. */
static void add_changes(const struct recipe *base, const struct recipe *changed, struct text *out)
{
    for (int i = 0; i < AXES; i++) {
        struct text before = {0}, after = {0};
        recipe_key_text(base, keys[i], &before);
        recipe_key_text(changed, keys[i], &after);
        if (strcmp(before.chars, after.chars) != 0 && !recipe_key_is_unused(changed, keys[i]))
            text_add(out, "%s%s=%s", out->length > 0 ? " " : "", names[i] != NULL ? names[i] : keys[i],
                     after.chars);
        text_free(&before);
        text_free(&after);
    }
    if (base->pipeline.layout.count > 0)
        text_add(out, "%spipeline.layout=[]", out->length > 0 ? " " : "");
}

static enum status take(const struct sweep *sweep, const struct recipe *base, struct advice_items *out)
{
    for (size_t i = 0; i < sweep->best_count && out->count < ADVICE_MAX; i++) {
        const struct sweep_layout *layout = &sweep->layouts[sweep->best[i]];
        struct advice_item *item = &out->items[out->count];
        struct recipe *recipe;
        struct text change = {0};
        TRY(sweep_recipe(sweep, layout->number, &recipe));
        add_changes(base, recipe, &change);
        recipe_destroy(recipe);
        *item = (struct advice_item){.step_s = layout->step_s,
                                     .needed_bytes = layout->needed_bytes,
                                     .bubble_fraction = layout->bubble_fraction};
        if (change.length > 0 && change.length < ADVICE_CHARS) {
            memcpy(item->change, change.chars, change.length + 1);
            out->count++;
        }
        text_free(&change);
    }
    return OK;
}

static enum status make(const struct advice_source *source, const struct recipe *base,
                        struct sweep_file *file, struct advice_items *out)
{
    const char **overrides = calloc(source->override_count + 2, sizeof *overrides);
    struct sweep_options options = {
        .overrides = overrides, .world_size = recipe_world_size(base), .best = ADVICE_MAX};
    struct problems problems = {0};
    struct sweep sweep;
    if (overrides == NULL)
        return fail(NO_MEMORY, "no memory for the overrides");
    for (size_t i = 0; i < source->override_count; i++)
        if (!override_sets_any(source->overrides[i], keys, AXES))
            overrides[options.override_count++] = source->overrides[i];
    if (base->pipeline.layout.count > 0)
        overrides[options.override_count++] = "pipeline.layout=[]";
    enum status status = sweep_make(file, &options, &sweep, &problems);
    problems_free(&problems);
    if (status == OK) {
        status = take(&sweep, base, out);
        sweep_free(&sweep);
    }
    free(overrides);
    return status;
}

enum status advice_fit(const struct advice_source *source, const struct recipe *base,
                       struct advice_items *out)
{
    struct text yaml = {0};
    struct problems problems = {0};
    struct sweep_file file;
    out->count = 0;
    text_add(&yaml, "base: recipe\naxes:\n");
    for (int i = 0; i < AXES; i++)
        add_axis(base, i, &yaml);
    enum status status = sweep_file_parse("advice", yaml.chars, yaml.length, &file, &problems);
    problems_free(&problems);
    text_free(&yaml);
    if (status == OK) {
        free(file.base);
        file.base = text_copy(source->path);
        status = make(source, base, &file, out);
        sweep_file_free(&file);
    }
    return status == NO_MEMORY ? status : OK;
}
