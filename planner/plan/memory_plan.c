// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/memory_plan.h"

#include "base/machine.h"
#include "kernels/device_plan.h"
#include "parallel/observe_world.h"
#include "planner/memory/memory_layer.h"
#include "trainer/checkpoint/checkpoint.h"

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
    s->run.hooks = (struct hooks){0};
    if (s->recorder != NULL)
        s->run.hooks = (struct hooks){
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
    TRY(step_recorder_create(s->recorder, &s->step));
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
    TRY(tape_recorder_create(rank, &s->recorder));
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

void memory_plan_advise(const struct recipe *recipe, struct text *out)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    const struct recompute *recompute = &recipe->layers.recompute;
    const char *const keys[] = {
        recipe->train.micro_batch_size > 1 ? "a smaller train.micro_batch_size" : NULL,
        recompute->granularity != RECOMPUTE_FULL ? "memory.recompute_granularity full" : NULL,
        recipe->precision.params_dtype == RECIPE_FP32 ? "precision.params_dtype bf16" : NULL,
        parallel->data_parallel_size > 1 && recipe->data_parallel.zero_stage < 3
            ? "a larger parallel.zero_stage"
            : NULL,
        !recipe->memory.offload_optimizer ? "memory.offload_optimizer true" : NULL,
        recipe->kernels.matmul_algorithms != NULL ? "cluster.matmul_algorithms none" : NULL,
        "more ranks in parallel.tensor_parallel_size or parallel.pipeline_parallel_size",
    };
    const char *before = "reduce it with ";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i] != NULL) {
            text_add(out, "%s%s", before, keys[i]);
            before = "; ";
        }
}

void memory_plan_largest(const int64_t *bytes, struct text *out)
{
    enum { LARGEST = 4 };
    bool listed[PART_COUNT] = {[PART_SNAPSHOT] = true, [PART_HOST] = true};
    for (int n = 0; n < LARGEST; n++) {
        char number[NUMBER_CHARS];
        int most = PART_HOST;
        for (int part = 0; part < PART_COUNT; part++)
            if (!listed[part] && (listed[most] || bytes[part] > bytes[most]))
                most = part;
        text_add(out, "%s%s %s", n > 0 ? ", " : "", part_name((enum part)most),
                 bytes_text(bytes[most], number));
        listed[most] = true;
    }
}

enum status memory_plan_create_rank(const struct run *run, struct world *world, struct rank_state *out)
{
    struct rank_options options = {.training = true};
    struct memory_plan plan;
    char size[NUMBER_CHARS];
    struct text why = {0};
    *out = (struct rank_state){.run = run};
    if (!device_traits(run_device_options(run, 1).name)->has_memory_pool)
        return rank_create(run, world, &options, out);
    TRY(memory_plan_make(run, world->rank, NULL, &plan));
    options.pool_bytes = plan.pool_bytes;
    enum status status = rank_create(run, world, &options, out);
    if (status != NO_DEVICE_MEMORY || out->device != NULL)
        return status; // of an open device: memory_plan_explain()
    text_add(&why, "%s; rank %d needs %s of GPU %d (", fail_text(), world->rank,
             bytes_text((int64_t)plan.pool_bytes, size), world->device_index);
    memory_plan_largest(plan.use.peak_bytes, &why);
    text_add(&why, "); ");
    memory_plan_advise(run->recipe, &why);
    status = fail(status, "%s", text_chars(&why));
    text_free(&why);
    return status;
}

/* Appends the keys that reduce host memory, pinned or not. */
static void advise_of_host(const struct recipe *recipe, struct text *out)
{
    text_add(out, "; reduce it with ");
    if (recipe->memory.offload_optimizer)
        text_add(out, "memory.offload_optimizer false; ");
    if (recipe->memory.offload_activations)
        text_add(out, "memory.offload_activations false; ");
    if (recipe->checkpoint.async_save)
        text_add(out, "a smaller checkpoint.staging_mb; ");
    text_add(out, "fewer ranks on a machine; other processes or a limit (container, srun --mem) "
                  "account for the rest");
}

/* Memory outside the plan's pool is allocated from CUDA, in competition with other users of the GPU. */
static void describe_allocations(const struct rank_state *w, struct text *out)
{
    char size[NUMBER_CHARS];
    const struct memory_use use = device_memory(w->device);
    int64_t held = 0;
    for (int part = 0; part < PART_COUNT; part++)
        held += part_is_on_host((enum part)part) ? 0 : use.now_bytes[part];
    text_add(out, "; rank %d has %s of GPU %d (", w->world->rank, bytes_text(held, size),
             w->world->device_index);
    memory_plan_largest(use.now_bytes, out);
    text_add(out, "), and CUDA's libraries or other processes (nvidia-smi) the rest; ");
}

enum status memory_plan_explain(const struct recipe *recipe, const struct rank_state *state,
                                enum status status)
{
    const bool of_gpu = status == NO_DEVICE_MEMORY && state->device != NULL;
    const bool of_host = status == NO_MEMORY && device_traits(recipe->cluster.device)->is_gpu;
    const struct rank_context *who = rank_context();
    struct text why = {0};
    if (!of_gpu && !of_host)
        return status;
    if (who->step > 0)
        text_add(&why, "step %d, %s: ", who->step, who->action);
    text_add(&why, "%s", fail_text());
    if (of_gpu) {
        describe_allocations(state, &why);
        memory_plan_advise(recipe, &why);
    } else {
        advise_of_host(recipe, &why);
    }
    status = fail(status, "%s", text_chars(&why));
    text_free(&why);
    return status;
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
    struct memory_assume assume = memory_of_working(recipe_working_dtype(recipe), recipe_main_dtype(recipe));
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
