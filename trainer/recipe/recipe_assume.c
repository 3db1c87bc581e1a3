// SPDX-License-Identifier: Apache-2.0
/* The section `assume`, which only a plan reads. */
#include "trainer/recipe/recipe_rules.h"

#include <string.h>

static bool is_assumed(const struct recipe *recipe, int row)
{
    return recipe_row_in_section(&recipe_rows[row], "assume") &&
           !recipe_value_is_default(recipe, &recipe_rows[row]);
}

void recipe_assumed_text(const struct recipe *recipe, struct text *out)
{
    for (int i = 0; i < recipe_row_count; i++)
        if (is_assumed(recipe, i)) {
            text_add(out, "%s%s=", out->length > 0 ? " " : "", recipe_rows[i].key);
            recipe_value_text(recipe, &recipe_rows[i], out);
        }
}

/* The first key of the section that is not the default; -1: none. */
static int first_assumption(const struct recipe *recipe)
{
    for (int i = 0; i < recipe_row_count; i++)
        if (is_assumed(recipe, i))
            return i;
    return -1;
}

static bool assumption_holds(const struct view *v)
{
    return !device_traits(v->recipe->cluster.device)->computes || first_assumption(v->recipe) < 0;
}

static void assumption_message(const struct view *v, struct text *out)
{
    const struct recipe_row *row = &recipe_rows[first_assumption(v->recipe)];
    text_add(out, "%s ", row->key);
    recipe_value_text(v->recipe, row, out);
    text_add(out,
             " is for plans only, but cluster.device is %s; use cuboid plan or cluster.device=dry, or remove "
             "it",
             v->recipe->cluster.device);
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
    {"assume.programs assume.attention assume.norm assume.activation assume.rope assume.gate "
     "assume.accumulation assume.recompute assume.gradient_dtype assume.optimizer_bytes_per_parameter "
     "assume.logits_bytes_per_element assume.partition assume.overlap assume.tp_overlap "
     "assume.reserved_bytes assume.kept_bytes assume.fragmentation assume.logits assume.printed_memory "
     "assume.activations assume.gradient_reduction assume.rollback assume.dropout_masks cluster.device",
     assumption_holds,
     assumption_message,
     {{0}}},
};
const struct rules recipe_plan_rules = RULES_OF(rules);
