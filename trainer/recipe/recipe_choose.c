// SPDX-License-Identifier: Apache-2.0
/* The keys that a plan can choose, and which of them are open. */
#include "trainer/recipe/recipe_rules.h"

#include <string.h>

/* The keys opened by `parallel: auto`, unless given. */
static const char *const layout_keys[] = {"parallel.tensor_parallel_size", "parallel.pipeline_parallel_size",
                                          "parallel.zero_stage",           "parallel.sequence_parallel",
                                          "parallel.tp_comm_overlap",      "parallel.overlap_param_gather",
                                          "parallel.bucket_size_mb",       "pipeline.schedule",
                                          "pipeline.virtual_stages"};

static void open_row(struct recipe *recipe, int row)
{
    if (recipe->origin[row].kind == FROM_COMMAND_LINE)
        return;
    if (recipe_rows[row].fallback != NULL)
        recipe_value_set_default(recipe, &recipe_rows[row]);
    else
        recipe_value_free(recipe, &recipe_rows[row]);
    recipe->origin[row] = (struct recipe_origin){.kind = FROM_DEFAULT};
}

void recipe_open_layout(struct recipe *recipe)
{
    for (size_t i = 0; i < sizeof layout_keys / sizeof *layout_keys; i++)
        open_row(recipe, recipe_row_index(layout_keys[i]));
    open_row(recipe, recipe_row_index("parallel.data_parallel_size"));
    open_row(recipe, recipe_row_index("pipeline.layout"));
}

int recipe_open_keys(const struct recipe *recipe, const char **keys)
{
    int count = 0;
    for (int i = 0; i < recipe_row_count; i++)
        if (recipe_rows[i].chosen && recipe->origin[i].kind == TO_BE_CHOSEN)
            keys[count++] = recipe_rows[i].key;
    for (size_t i = 0; i < sizeof layout_keys / sizeof *layout_keys; i++)
        if (recipe->parallel.search == SEARCH_AUTO &&
            recipe->origin[recipe_row_index(layout_keys[i])].kind == FROM_DEFAULT)
            keys[count++] = layout_keys[i];
    CHECK(count <= RECIPE_MAX_CHOSEN);
    return count;
}

static bool times_hold(const struct view *v)
{
    const struct recipe_pipeline *pipeline = &v->recipe->pipeline;
    return strcmp(pipeline->schedule, "auto") != 0 || pipeline->search.times != TIMES_PLAN ||
           v->recipe->cluster.profile != NULL;
}

static void times_message(const struct view *v, struct text *out)
{
    (void)v;
    text_add(out, "pipeline.auto_times plan needs cluster.profile; add cluster.profile=NAME (cuboid profile "
                  "--list), or use pipeline.auto_times=given");
}

static const struct rule rules[] = {
    {"pipeline.auto_times cluster.profile pipeline.schedule", times_hold, times_message, {{0}}},
};
const struct rules recipe_plan_rules = RULES_OF(rules);
