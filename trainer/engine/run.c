// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/run.h"

#include "base/machine.h"
#include "base/memory.h"
#include "kernels/device_plan.h"
#include "parallel/launcher.h"
#include "schedules/csv/csv.h"
#include "schedules/simulate.h"
#include "trainer/data/recipe_data.h"

#include <stdlib.h>
#include <string.h>

/* A schedule file may have changed since the recipe was checked. */
static enum status read_schedule(const struct recipe *recipe, struct schedule **out)
{
    const struct recipe_pipeline *pipeline = &recipe->pipeline;
    struct schedule *s = NULL;
    TRY(schedule_read_csv(pipeline->schedule_file, &s));
    if (s->p == pipeline->file.p && s->m == pipeline->file.m && s->v == pipeline->file.v) {
        *out = s;
        return OK;
    }
    schedule_destroy(s);
    return fail(BAD_SCHEDULE, "%s changed after the recipe was read", pipeline->schedule_file);
}

static enum status build_schedule(const struct recipe *recipe, struct schedule **out)
{
    if (recipe->pipeline.schedule_file != NULL)
        return read_schedule(recipe, out);
    const struct recipe_auto *times = &recipe->pipeline.search;
    struct stage_cost whole = {times->f, times->i, times->w};
    struct cost_table costs = {.chunk = cost_of_part(whole, recipe->pipeline.virtual_stages),
                               .wire = times->comm};
    struct schedule_options options = {
        .name = recipe->pipeline.schedule,
        .p = recipe->parallel.pipeline_parallel_size,
        .m = (int)recipe_microbatches(recipe),
        .v = recipe->pipeline.virtual_stages,
        .microbatch_group_size = recipe->pipeline.microbatch_group_size,
        .costs = &costs,
        .memory_limit = times->memory_limit,
    };
    return schedule_build(&options, out);
}

static enum status table_of_layers(const struct recipe *recipe, int stages, int **out)
{
    *out = memory_zeroed((size_t)stages + 1, sizeof **out, "the table of stages");
    for (int stage = 0; stage < stages; stage++)
        (*out)[stage] = (int)recipe_stage_first_layer(recipe, stage);
    (*out)[stages] = (int)recipe->model.num_layers;
    return OK;
}

int run_stage_of_layer(const struct run *run, int layer)
{
    int stage = 0, end = run->schedule->stages; // the last stage that begins at or before the layer
    while (end - stage > 1) {
        const int middle = stage + (end - stage) / 2;
        if (layer >= run->stage_first_layer[middle])
            stage = middle;
        else
            end = middle;
    }
    return stage;
}

int run_rank_of_layer(const struct run *run, int layer)
{
    return schedule_rank(run->schedule, run_stage_of_layer(run, layer), 0);
}

static enum status create_mesh(const struct recipe *recipe, struct run *out)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    const struct degrees degrees = {
        .tp = parallel->tensor_parallel_size,
        .cp = 1,
        .ep = 1,
        .dp = parallel->data_parallel_size,
        .pp = parallel->pipeline_parallel_size,
    };
    TRY(tracing_parse(getenv("CUBOID_TRACE"), getenv("CUBOID_TRACE_FILE"), &out->tracing));
    return mesh_create(degrees, parallel->rank_order, &out->mesh);
}

static enum status create(const struct recipe *recipe, bool with_data, struct run *out)
{
    TRY(create_mesh(recipe, out));
    if (!out->has_callers_schedule)
        TRY(build_schedule(recipe, &out->schedule));
    TRY(table_of_layers(recipe, out->schedule->stages, &out->stage_first_layer));
    return with_data ? recipe_open_data(recipe, &out->data) : OK;
}

static enum status create_unscheduled(const struct recipe *recipe, struct run *out)
{
    const int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    TRY(create_mesh(recipe, out));
    return table_of_layers(recipe, stages, &out->stage_first_layer);
}

static enum status destroy_unless(enum status status, struct run *run)
{
    if (status != OK)
        run_destroy(run);
    return status;
}

enum status run_create(const struct recipe *recipe, bool with_data, struct run *out)
{
    return run_create_with_schedule(recipe, NULL, with_data, out);
}

enum status run_create_with_schedule(const struct recipe *recipe, struct schedule *schedule, bool with_data,
                                     struct run *out)
{
    *out = (struct run){.recipe = recipe, .schedule = schedule, .has_callers_schedule = schedule != NULL};
    return destroy_unless(create(recipe, with_data, out), out);
}

enum status run_create_unscheduled(const struct recipe *recipe, struct run *out)
{
    *out = (struct run){.recipe = recipe};
    return destroy_unless(create_unscheduled(recipe, out), out);
}

void run_destroy(struct run *run)
{
    data_close(run->data);
    if (!run->has_callers_schedule)
        schedule_destroy(run->schedule);
    free(run->stage_first_layer);
    *run = (struct run){0};
}

int run_threads(const struct run *run, int world_size)
{
    int asked = run->recipe->cluster.threads_per_rank;
    if (asked > 0)
        return asked;
    struct launcher launcher;
    struct machine machine;
    // Under a launcher each process is one rank.
    bool launched = launcher_find(&launcher) == OK && launcher.size > 0;
    machine_query(&machine);
    return machine_threads(&machine, launched ? launcher_local_size(getenv, launcher.size) : world_size,
                           launched ? 1 : world_size);
}

struct device_options run_device_options(const struct run *run, int threads)
{
    const struct recipe *recipe = run->recipe;
    const char *device = recipe->cluster.device;
    bool plans = run->is_planning || !device_traits(device)->computes;
    return (struct device_options){
        .name = plans ? planning_device_name() : device,
        .threads = threads,
        .nondeterministic = !recipe->deterministic,
        .simulated_device = !plans                            ? NULL
                            : device_traits(device)->computes ? device
                                                              : recipe->cluster.dry_device,
        .kernels = recipe->kernels,
    };
}
