// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/memory_plan.h"

#include "base/machine.h"
#include "base/memory.h"
#include "kernels/device_plan.h"
#include "layers/model.h"
#include "parallel/observe_world.h"
#include "planner/memory/memory_layer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/engine/step.h"

#include <stdlib.h>
#include <string.h>

/* The run with its device replaced. */
struct dry_run_of_rank {
    struct run run;
    struct slot_use *slots;
    struct tape_recorder *recorder; // NULL: no tape
    struct step_recorder *step;     // NULL: every action is run, none repeated
    struct memory_plan *out;
};

static enum status dry_step(struct world *world, void *argument)
{
    struct dry_run_of_rank *s = argument;
    struct rank_state state;
    struct step_result result;
    if (s->recorder != NULL)
        TRY(world_observe(world, tape_recorder_observer(s->recorder)));
    TRY(rank_create(&s->run, world, &(struct rank_options){.training = true}, &state));
    TRY(checkpoint_reserve(&state));
    if (s->recorder != NULL)
        tape_recorder_record(s->recorder, true);
    const enum status status = rank_step(&state, &result);
    if (s->recorder != NULL)
        tape_recorder_record(s->recorder, false); // not what rank_destroy() enqueues
    s->out->use = device_memory(state.device);
    s->out->pool_bytes = device_planned_bytes(state.device);
    for (int chunk = 0; s->slots != NULL && chunk < s->run.schedule->chunks; chunk++)
        stash_slots(&executor_store(state.executor)->stash, chunk, &s->slots[chunk * SLOT_LIFETIMES]);
    rank_destroy(&state);
    return status;
}

/* The hook on_params_declared: the device is open, and nothing is enqueued yet. */
static enum status observe(void *context, struct rank_state *state)
{
    const struct dry_run_of_rank *s = context;
    return device_observe(state->device, tape_recorder_observer(s->recorder));
}

static enum status run_ops(void *context, const struct stage_ops *ops, struct graph **graph)
{
    const struct dry_run_of_rank *s = context;
    return step_recorder_run(s->step, ops, graph);
}

static enum status run_on_dry(const struct run *run, int rank, struct dry_run_of_rank *s)
{
    s->run = *run;
    s->run.is_planning = true;
    s->run.data = NULL;
    s->run.observer = (struct step_observer){0};
    if (s->recorder != NULL)
        s->run.observer = (struct step_observer){
            .context = s, .on_params_declared = observe, .run_stage_ops = s->step != NULL ? run_ops : NULL};
    if (device_traits(run->recipe->cluster.device)->computes)
        s->run.tracing = (struct tracing){.any = false}; // only the run is traced, not its plan
    const struct rank_context before = *rank_context();  // no rank yet, and not in the simulated step
    enum status status = world_run_dry(run->mesh.world, rank, dry_step, s);
    *rank_context() = before;
    return status;
}

enum status memory_plan_make(const struct run *run, int rank, struct slot_use *slots, struct memory_plan *out)
{
    *out = (struct memory_plan){.pool_bytes = 0};
    return run_on_dry(run, rank, &(struct dry_run_of_rank){.slots = slots, .out = out});
}

/* Runs the step with a step recorder, and keeps its counts. */
static enum status run_recorded(const struct run *run, int rank, struct dry_run_of_rank *s)
{
    s->step = step_recorder_create(s->recorder);
    enum status status = run_on_dry(run, rank, s);
    s->out->actions = step_recorder_counts(s->step);
    step_recorder_destroy(s->step);
    return status;
}

int64_t memory_plan_least_items(const struct recipe *recipe)
{
    enum { ITEMS_OF_LAYER = 24 }; // forward and backward, with parallel branches, RMSNorm and no biases
    return ITEMS_OF_LAYER * recipe->model.num_layers * recipe_microbatches(recipe);
}

enum status memory_plan_check_length(const struct recipe *recipe)
{
    return memory_plan_least_items(recipe) > TAPE_MAX_ITEMS ? memory_plan_too_long(recipe) : OK;
}

enum status memory_plan_too_long(const struct recipe *recipe)
{
    return fail(NOT_SUPPORTED,
                "a step of %lld layers and %lld microbatches has more than %d million ops and messages, too "
                "many to plan; use fewer microbatches: a smaller train.global_batch_size (now %lld) or a "
                "larger train.micro_batch_size (now %lld)",
                (long long)recipe->model.num_layers, (long long)recipe_microbatches(recipe),
                TAPE_MAX_ITEMS / 1000000, (long long)recipe->train.global_batch_size,
                (long long)recipe->train.micro_batch_size);
}

static enum status record(const struct run *run, int rank, bool repeats, struct dry_run_of_rank *s,
                          struct tape **tape)
{
    *s->out = (struct memory_plan){.pool_bytes = 0};
    s->recorder = tape_recorder_create(rank);
    enum status status = repeats ? run_recorded(run, rank, s) : run_on_dry(run, rank, s);
    struct tape *recorded = NULL;
    enum status finished = tape_recorder_finish(s->recorder, &recorded);
    status = status != OK ? status : finished;
    if (status == OK)
        *tape = recorded;
    else
        tape_destroy(recorded);
    return status == NOT_SUPPORTED ? memory_plan_too_long(run->recipe) : status;
}

enum status memory_plan_record(const struct run *run, int rank, struct slot_use *slots,
                               struct memory_plan *out, struct tape **tape)
{
    // A run that is traced shows all of its actions.
    const bool traces = run->tracing.any && !device_traits(run->recipe->cluster.device)->computes;
    return record(run, rank, !traces, &(struct dry_run_of_rank){.slots = slots, .out = out}, tape);
}

enum status memory_plan_record_all(const struct run *run, int rank, struct slot_use *slots,
                                   struct memory_plan *out, struct tape **tape)
{
    return record(run, rank, false, &(struct dry_run_of_rank){.slots = slots, .out = out}, tape);
}

static enum status need_of(const struct run *run, int rank, struct memory_need *out)
{
    struct memory_plan plan;
    TRY(memory_plan_make(run, rank, NULL, &plan));
    out->pool_bytes = plan.pool_bytes;
    memcpy(out->part_bytes, plan.use.peak_bytes, sizeof out->part_bytes);
    return OK;
}

enum status memory_plan_needs(const struct run *run, int rank, struct memory_need **out)
{
    const int world = run->mesh.world;
    *out = NULL;
    if (!device_traits(run_device_options(run, 1).name)->has_memory_pool)
        return OK;
    struct memory_need *needs = memory_zeroed((size_t)world, sizeof *needs, "the memory of ranks");
    enum status status = OK;
    for (int i = 0; i < world && status == OK; i++)
        if (rank < 0 || i == rank)
            status = need_of(run, i, &needs[i]);
    if (status == OK)
        *out = needs;
    else
        free(needs);
    return status;
}

enum status memory_plan_create_rank(const struct run *run, struct world *world, struct rank_state *out)
{
    struct memory_need need;
    const bool has_pool = device_traits(run_device_options(run, 1).name)->has_memory_pool;
    if (has_pool)
        TRY(need_of(run, world->rank, &need));
    return rank_create_for_training(run, world, has_pool ? &need : NULL, out);
}

/* Estimates as in 1910.02054, section 5, over all data ranks. */
enum status memory_plan_check_host(const struct recipe *recipe)
{
    struct machine machine;
    int64_t elements;
    machine_query(&machine);
    double there = (double)machine.memory_bytes; // or the limit of its cgroup
    if (!device_traits(recipe->cluster.device)->has_host_memory)
        return OK;
    TRY(model_parameter_count(&recipe->model, &elements));
    double parameters = (double)elements;
    struct memory_assume assume =
        memory_of_working(recipe->precision.params_dtype, recipe->precision.main_params_dtype);
    int zero = recipe->data_parallel.zero_stage, data = recipe->parallel.data_parallel_size;
    if (zero >= 3 && assume.master > 0)
        assume.weight = 0; // rounded from the master weights when they are gathered
    double bytes = memory_of_states(&assume, 1.0, zero, 1);
    double needed = memory_of_states(&assume, parameters, zero, data) * data;
    if (needed <= there)
        return OK;
    char count[NUMBER_CHARS], most[NUMBER_CHARS];
    count_text(parameters, count);
    count_text(parameters * there / needed, most);
    return fail(BAD_RECIPE,
                "the model has %s parameters; with parallel.data_parallel_size %d%s their "
                "values, gradients and moments (%.0f bytes each) need %.1f GiB, but this machine "
                "has %.1f GiB; use at most %s parameters, or several machines (mpirun, srun)",
                count, data, data > 1 && zero < 3 ? " (a larger parallel.zero_stage reduces this)" : "",
                bytes, needed / 0x1p30, there / 0x1p30, most);
}
