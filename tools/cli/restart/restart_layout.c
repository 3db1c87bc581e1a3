// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/step_plan.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/schedule/choose_schedule.h"
#include "tools/cli/restart/restart.h"

#include <stdlib.h>
#include <string.h>

void layout_free(struct layout *layout)
{
    chosen_free(&layout->chosen);
    *layout = (struct layout){0};
}

static void PRINTF_LIKE(2, 3) set(struct recipe_names *overrides, const char *format, ...)
{
    char chars[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(chars, sizeof chars, format, arguments);
    va_end(arguments);
    overrides_set(&planner_keys, overrides, chars);
}

/* The fewest nodes that `ranks` fill evenly, with at most per_node each; 0: none of up to `nodes`. */
static int nodes_for(int ranks, int nodes, int per_node)
{
    for (int n = (ranks + per_node - 1) / per_node; n <= nodes; n++)
        if (ranks % n == 0)
            return n;
    return 0;
}

/* Collects the overrides of the run, and those of a layout with other data-parallel ranks: a
 * node holds at most one copy of a checkpoint in memory. */
static void make_overrides(const struct start *start, const struct layout *layout, struct recipe_names *out)
{
    const struct recipe_cluster *cluster = &start->recipe->cluster;
    const struct recipe_checkpoint *checkpoint = &start->recipe->checkpoint;
    for (size_t i = 0; i < start->overrides->count; i++)
        overrides_set(&planner_keys, out, start->overrides->list[i]);
    set(out, "parallel.data_parallel_size=%d", layout->dp);
    if (cluster->nodes > 0)
        set(out, "cluster.nodes=%d", layout->nodes);
    if (cluster->gpus_per_node > 0)
        set(out, "cluster.gpus_per_node=%d", layout->ranks / layout->nodes / cluster->ranks_per_gpu);
    if (checkpoint->memory_dir != NULL && checkpoint->memory_copies > layout->nodes)
        set(out, "checkpoint.memory_copies=%d", layout->nodes);
}

/* With a cluster profile, plans the memory. BAD_RECIPE if the layout does not fit. */
static enum status check_fit(const struct recipe *recipe)
{
    struct cluster_profile *profile = NULL;
    struct run run = {.recipe = NULL};
    struct step_plan plan;
    char needed[NUMBER_CHARS], size[NUMBER_CHARS];
    if (recipe->cluster.profile == NULL)
        return OK;
    TRY(step_plan_profile(recipe, &profile));
    enum status status = planned_run_create(recipe, &run);
    if (status == OK)
        status = step_plan_make(&run, profile, &plan);
    if (status == OK) {
        if (!plan.fits)
            status = fail(BAD_RECIPE, "%s per device, and it has %s", bytes_text(plan.needed_bytes, needed),
                          bytes_text(plan.device_bytes, size));
        step_plan_free(&plan);
    }
    run_destroy(&run);
    profile_destroy(profile);
    return status;
}

/* Loads the recipe with this layout; BAD_RECIPE if it is invalid or does not fit. */
static enum status load(const struct start *start, struct layout *layout)
{
    struct recipe_names overrides = {0};
    struct problems problems = {0};
    struct recipe *recipe = NULL;
    make_overrides(start, layout, &overrides);
    const struct choose_options options = {.path = start->path,
                                           .overrides = (const char *const *)overrides.list,
                                           .override_count = overrides.count};
    enum status status = choose_load(&options, &recipe, &layout->chosen, &problems);
    if (status == OK) {
        status = check_fit(recipe);
        if (status != OK)
            chosen_free(&layout->chosen);
    } else if (problems.count > 0)
        status = fail(BAD_RECIPE, "%s", problems.list[0].text);
    for (size_t i = 0; i < overrides.count; i++)
        free(overrides.list[i]);
    free(overrides.list);
    problems_free(&problems);
    recipe_destroy(recipe);
    return status;
}

static enum status too_few(const struct nodes *nodes, const char *way)
{
    return fail(IO_ERROR, "%d node%s of the %d that the layout needs%s%s; %s", nodes->count,
                nodes->count == 1 ? " is left" : "s are left", nodes->needed,
                nodes->why.length > 0 ? ": " : "", text_chars(&nodes->why), way);
}

static enum status make_elastic(const struct start *start, const struct nodes *nodes, struct layout *out)
{
    const struct recipe *recipe = start->recipe;
    const int dp = recipe->parallel.data_parallel_size, model = recipe_world_size(recipe) / dp;
    struct text why = {0};
    for (out->dp = nodes->count * nodes->per_node / model; out->dp > 0; out->dp--) {
        if (recipe->train.global_batch_size % (recipe->train.micro_batch_size * out->dp) != 0)
            continue;
        out->ranks = model * out->dp;
        out->nodes = nodes_for(out->ranks, nodes->count, nodes->per_node);
        if (out->nodes > 0 && load(start, out) == OK)
            break;
        if (out->nodes > 0 && why.length == 0)
            text_add(&why, "; data_parallel_size=%d: %s", out->dp, fail_text());
    }
    enum status status = OK;
    if (out->dp > 0)
        print_line(
            stderr,
            "elastic: %d of %d nodes: parallel.data_parallel_size %d instead of %d, %d ranks on %d node%s, "
            "%lld microbatches instead of %lld; train.global_batch_size is %lld as before",
            nodes->count, nodes->needed, out->dp, dp, out->ranks, out->nodes, out->nodes == 1 ? "" : "s",
            (long long)(recipe_microbatches(recipe) * dp / out->dp), (long long)recipe_microbatches(recipe),
            (long long)recipe->train.global_batch_size);
    else
        status = fail(
            IO_ERROR, "resilience.elastic: no layout for %d of %d nodes keeps train.global_batch_size %lld%s",
            nodes->count, nodes->needed, (long long)recipe->train.global_batch_size, text_chars(&why));
    text_free(&why);
    return status;
}

enum status layout_make(const struct start *start, const struct nodes *nodes, struct layout *out)
{
    *out = (struct layout){.nodes = nodes->needed,
                           .ranks = recipe_world_size(start->recipe),
                           .dp = start->recipe->parallel.data_parallel_size};
    if (nodes->count >= nodes->needed)
        return OK;
    if (!start->recipe->resilience.elastic)
        return too_few(nodes, "set resilience.elastic=true to train on fewer, or allocate spare nodes");
    if (nodes->count == 0)
        return too_few(nodes, "allocate other nodes");
    return make_elastic(start, nodes, out);
}
