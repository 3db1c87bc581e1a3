// SPDX-License-Identifier: Apache-2.0
#include "planner/schedule/choose_schedule.h"

#include "base/memory.h"
#include "planner/memory/memory_formula.h"
#include "planner/plan/step_plan.h"
#include "planner/schedule/sweep_unit.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct choosing {
    struct run *run;
    const struct cluster_profile *profile;
    struct stage_cost *stages; // [p·v]
    struct cost_table costs;
};

/* ---- times ---- */

static void add_cost(struct stage_cost *to, struct stage_cost cost, double times)
{
    to->f += times * cost.f;
    to->i += times * cost.i;
    to->w += times * cost.w;
}

/* Time of a message between two stages, from a rank to the next one. */
static double message_s(const struct choosing *c)
{
    const struct recipe *recipe = c->run->recipe;
    const struct cost_options options = step_plan_cost_options(c->run, c->profile);
    const int ranks[] = {0, mesh_rank(&c->run->mesh, MESH_DENSE, (struct mesh_coord){.pp = 1})};
    const int64_t elements =
        recipe->train.micro_batch_size * recipe->model.seq_length * recipe->model.hidden_size;
    const int64_t bytes = elements * (int64_t)dtype_bytes(recipe->precision.params_dtype);
    return cost_of_message(
        &options, CALL_SEND, cost_group_shape(&options, ranks, 2),
        bytes / (recipe->layers.sequence_parallel ? recipe->parallel.tensor_parallel_size : 1));
}

static void find_times(struct choosing *c, int stages)
{
    const struct recipe *recipe = c->run->recipe;
    struct sweep_unit unit;
    sweep_unit_measure(recipe, c->profile, &unit);
    for (int i = 0; i < stages; i++) {
        if (!unit.is_known) {
            c->stages[i] = (struct stage_cost){1.0, 1.0, 1.0};
            continue;
        }
        add_cost(&c->stages[i], unit.layer[1], (double)recipe_stage_layers(recipe, i));
        add_cost(&c->stages[i], unit.embedding[1], i == 0 ? 1.0 : 0.0);
        add_cost(&c->stages[i], unit.rest, i == stages - 1 ? 1.0 : 0.0);
    }
    c->costs = (struct cost_table){.of_stage = c->stages};
    if (unit.is_known && recipe->parallel.pipeline_parallel_size > 1)
        c->costs.wire = message_s(c);
}

/* ---- memory ---- */

static enum status build(struct choosing *c, double memory_limit)
{
    const struct recipe *recipe = c->run->recipe;
    const struct schedule_options options = {
        .name = "auto",
        .p = recipe->parallel.pipeline_parallel_size,
        .m = (int)recipe_microbatches(recipe),
        .v = recipe->pipeline.virtual_stages,
        .microbatch_group_size = recipe->pipeline.microbatch_group_size,
        .costs = &c->costs,
        .memory_limit = memory_limit,
    };
    schedule_destroy(c->run->schedule);
    c->run->schedule = NULL;
    return schedule_build(&options, &c->run->schedule);
}

/* The most bytes that a microbatch keeps in any chunk. */
static int64_t kept_bytes(const struct memory_table *table, int chunks)
{
    int64_t most = 1;
    for (int chunk = 0; chunk < chunks; chunk++) {
        int64_t bytes = 0;
        for (int lifetime = 0; lifetime < SLOT_LIFETIMES; lifetime++)
            bytes += table->slots[chunk * SLOT_LIFETIMES + lifetime].bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* *limit: an estimate of how many chunks of microbatches a rank may hold for the schedule to fit; INT_MAX if
 * it fits. */
static enum status find_limit(const struct choosing *c, int *limit)
{
    const struct run *run = c->run;
    const int64_t device = step_plan_limit(c->profile, run->recipe);
    *limit = INT_MAX;
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        const int rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp});
        struct memory_table table;
        TRY(memory_formula(run, rank, run_threads(run, run->mesh.world), &table));
        const int64_t kept = kept_bytes(&table, run->schedule->chunks);
        const int64_t needed = step_plan_needed(c->profile, run, table.bytes);
        const int64_t each = step_plan_needed(c->profile, run, table.bytes + kept) - needed;
        memory_table_free(&table);
        if (needed <= device)
            continue;
        const int64_t fewer = (needed - device) / (each > 0 ? each : 1) + 1;
        const int64_t held = schedule_peak(run->schedule, pp) - fewer;
        *limit = held < *limit ? (int)(held > 0 ? held : 0) : *limit;
    }
    return OK;
}

/* Builds the schedule with fewer and fewer microbatches in flight, until it fits. *used: its limit. */
static enum status build_to_fit(struct choosing *c, double *used)
{
    const int v = c->run->recipe->pipeline.virtual_stages;
    double before = INFINITY;
    *used = 0.0;
    TRY(build(c, 0.0));
    while (before > 1.0) {
        int chunks;
        TRY(find_limit(c, &chunks));
        if (chunks == INT_MAX)
            return OK;
        const double limit = fmax(fmin((double)chunks / v, before - 1.0 / v), 1.0);
        TRY(build(c, limit));
        *used = before = limit;
    }
    return OK;
}

/* The search minimizes the time from the first action of any rank to the last one. With post-validation, a
 * step takes the longest time of a single rank, from its first action to its last one: if stages differ, the
 * slowest one hides from the search what the others could gain. So it also searches with equal stages. */
static enum status try_equal_stages(struct choosing *c, int stages, double limit)
{
    struct schedule *const first = c->run->schedule;
    struct stage_cost mean = {0.0, 0.0, 0.0};
    if (!c->run->recipe->pipeline.optimizer_post_validation)
        return OK;
    for (int i = 0; i < stages; i++)
        add_cost(&mean, c->stages[i], 1.0 / stages);
    for (int i = 0; i < stages; i++)
        c->stages[i] = mean;
    c->run->schedule = NULL;
    enum status status = build(c, limit);
    struct schedule *const other = c->run->schedule;
    c->run->schedule = first;
    if (status == OK)
        status = choose_shorter(c->run, c->profile, other);
    return status;
}

static enum status choose_schedule(struct run *run)
{
    const struct recipe *recipe = run->recipe;
    const int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    struct cluster_profile *profile = NULL;
    TRY(step_plan_profile(recipe, &profile));
    struct choosing c = {.run = run,
                         .profile = profile,
                         .stages = memory_zeroed((size_t)stages, sizeof *c.stages, "the costs of stages")};
    find_times(&c, stages);
    const double limit = recipe->pipeline.search.memory_limit;
    double used = limit;
    enum status status = limit > 0.0 ? build(&c, limit) : build_to_fit(&c, &used);
    if (status == OK)
        status = try_equal_stages(&c, stages, used);
    if (status == OK && limit == 0.0)
        status = choose_named(run, profile);
    free(c.stages);
    profile_destroy(profile);
    return status;
}

static bool is_planned(const struct recipe *recipe)
{
    return recipe->pipeline.schedule_file == NULL && strcmp(recipe->pipeline.schedule, "auto") == 0 &&
           recipe->pipeline.search.times == TIMES_PLAN;
}

enum status planned_run_create(const struct recipe *recipe, struct run *out)
{
    if (!is_planned(recipe))
        return run_create(recipe, false, out);
    TRY(run_create_unscheduled(recipe, out));
    const enum status status = choose_schedule(out);
    if (status != OK)
        run_destroy(out);
    return status;
}

enum status planned_run_make(const struct recipe *recipe, int rank, struct planned_run *out)
{
    *out = (struct planned_run){.needs = NULL};
    TRY(planned_run_create(recipe, &out->run));
    const enum status status = memory_plan_needs(&out->run, rank, &out->needs);
    if (status != OK)
        planned_run_free(out);
    return status;
}

void planned_run_free(struct planned_run *planned)
{
    run_destroy(&planned->run);
    free(planned->needs);
    *planned = (struct planned_run){.needs = NULL};
}
