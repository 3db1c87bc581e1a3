// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/rank.h"

#include "base/memory.h"
#include "layers/model.h"
#include "parallel/observe_world.h"

#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

static enum status open_device(const struct run *run, const struct world *world, size_t pool_bytes,
                               struct device **out)
{
    struct device_options options = run_device_options(run, run_threads(run, world->size));
    options.index = world->device_index;
    if (device_traits(options.name)->has_memory_pool)
        options.reserve_bytes = pool_bytes;
    return device_open(&options, out);
}

void rank_observe(struct rank_state *state, struct step_observer *observer)
{
    observer->next = state->observers;
    state->observers = observer;
}

/* This rank's layers in the order in which their gradients become ready: the last chunk first, and within
 * it the last layer first. */
static int layers_held(const struct run *run, int pp_rank, int *out)
{
    const struct schedule *schedule = run->schedule;
    int count = 0;
    for (int stage = schedule->stages - 1; stage >= 0; stage--) {
        if (!schedule_holds(schedule, pp_rank, stage))
            continue;
        struct stage_span span = stage_span_of(run->stage_first_layer, schedule->stages, stage);
        for (int i = span.count - 1; i >= 0; i--)
            out[count++] = span.first + i;
    }
    return count;
}

static enum status create_weights(struct rank_state *state, bool training)
{
    const struct run *run = state->run;
    AUTO_FREE int *layers =
        memory_zeroed((size_t)run->recipe->model.num_layers + 2, sizeof *layers, "the layers of a rank");
    int count = layers_held(run, state->groups->coord.pp, layers);
    struct weights_config config = {
        .device = state->device,
        .params = &state->params,
        .coord = state->groups->coord,
        .layers = layers,
        .layer_count = count,
        .working = state->run->recipe->precision.params_dtype,
        .main = state->run->recipe->precision.main_params_dtype,
        .training = training,
        .offload_moments = state->run->recipe->memory.offload_optimizer,
        .groups = state->groups,
        .options = &run->recipe->data_parallel,
    };
    return weights_create(&config, &state->weights);
}

static enum status create_amax(struct rank_state *state)
{
    struct amax_history_config config = {
        .recipe = &state->run->recipe->precision,
        .params = &state->params,
        .groups = state->groups,
        .device = state->device,
        .compute = state->compute,
    };
    return amax_history_create(&config, &state->amax);
}

struct executor_config rank_executor_config(struct rank_state *state, bool training, int64_t sequences,
                                            int64_t row_tokens)
{
    const struct recipe *recipe = state->run->recipe;
    return (struct executor_config){
        .recipe = recipe,
        .world = state->world,
        .context = {.model = &recipe->model,
                    .options = &recipe->layers,
                    .groups = state->groups,
                    .weights = &state->weights,
                    .compute = state->compute,
                    .tokens = sequences * row_tokens,
                    .sequences = sequences,
                    .working = state->weights.working,
                    .delayed = amax_history_scaling(state->amax),
                    .cache = &state->cache,
                    .loss_scale = state->scale.buffer.data,
                    .seed = recipe->seed},
        .schedule = state->run->schedule,
        .stage_first_layer = state->run->stage_first_layer,
        .training = training,
        .observer = state->run->observer.run_stage_ops != NULL ? &state->run->observer : NULL,
        .log = &state->log,
    };
}

static enum status create_executor(struct rank_state *state, bool training)
{
    const struct recipe *recipe = state->run->recipe;
    const bool shorter = !training && state->run->row_tokens > 0;
    const struct executor_config config =
        rank_executor_config(state, training, recipe->train.micro_batch_size,
                             shorter ? state->run->row_tokens : recipe->model.seq_length);
    return executor_create(&config, &state->executor);
}

static enum status create_validation(struct rank_state *state)
{
    struct post_validation_config config = {
        .world = state->world,
        .groups = state->groups,
        .weights = &state->weights,
        .compute = state->compute,
        .optimizer = state->optimizer,
        .global_batch_size = state->run->recipe->train.global_batch_size,
        .note_bytes = sizeof(struct step_stats),
    };
    return post_validation_create(&config, &state->validation);
}

/* Declares the tied weights between the first and the last stage, in the direction in which this rank holds
 * one of them. */
static enum status add_ties(struct rank_state *state)
{
    const struct schedule *schedule = state->run->schedule;
    int last = schedule->stages - 1, mine = state->groups->coord.pp;
    const int *second = schedule->rank_of[1];
    const int *rank_of = schedule->rank_of[second[0] == mine || second[last] == mine ? 1 : 0];
    return rank_of[0] != rank_of[last]
               ? groups_add_ties(state->world, state->groups, rank_of[0], rank_of[last])
               : OK;
}

static enum status create_optimizer(struct rank_state *state)
{
    const struct recipe *recipe = state->run->recipe;
    struct optimizer_config config = {
        .recipe = &recipe->optimizer,
        .groups = state->groups,
        .weights = &state->weights,
        .compute = state->compute,
        .global_batch_size = recipe->train.global_batch_size,
        .seed = recipe->seed,
        .offload = recipe->memory.offload_optimizer,
        .loss_scale = state->scale.buffer.data,
    };
    int m = (int)recipe_microbatches(recipe);
    TRY(optimizer_create(&config, &state->optimizer));
    const size_t stats_bytes = (size_t)state->world->size * sizeof *state->stats.of_rank;
    state->stats.of_rank =
        memory_zeroed((size_t)state->world->size, sizeof *state->stats.of_rank, "the statistics of ranks");
    TRY(buffer_alloc(state->device, PART_DATA, stats_bytes, &state->stats.buffer));
    if (recipe->pipeline.optimizer_post_validation)
        TRY(create_validation(state));
    return batches_create(state->device, m, recipe->train.micro_batch_size, recipe->model.seq_length,
                          &state->batches);
}

static enum status create_scale(struct rank_state *state)
{
    state->scale.value = loss_scale_of(state->run->recipe);
    if (state->scale.value.scale > 0.0)
        TRY(buffer_alloc(state->device, PART_DATA, sizeof state->scale.sent, &state->scale.buffer));
    return rank_send_scale(state);
}

/* Before any comm is created. */
static enum status attach_observers(struct rank_state *state, bool training)
{
    const struct recipe *recipe = state->run->recipe;
    TRY(message_recorder_attach(&state->recorder, state->world));
    TRY(tracer_create(&state->run->tracing, state->device, state->world, &state->tracer));
    if (!training || !device_computes(state->device))
        return OK;
    const int pp = mesh_coord(&state->mesh, MESH_DENSE, state->world->rank).pp;
    const bool profiles = recipe->profile.timeline;
    const struct event_log_config config = {
        .device = state->device,
        .world = state->world,
        .actions = state->run->schedule->ranks[pp].count,
        .first = profiles ? recipe->profile.profile_step_start : 0,
        .last = profiles ? recipe_last_profiled_step(recipe) : -1,
    };
    return event_log_attach(&config, &state->log);
}

enum status rank_create(const struct run *run, struct world *world, const struct rank_options *options,
                        struct rank_state *out)
{
    const bool training = options->training;
    const struct recipe *recipe = run->recipe;
    *out = (struct rank_state){.run = run, .world = world, .mesh = run->mesh, .observers = &run->observer};
    // The device comes first: some transports use it while connecting.
    TRY(open_device(run, world, options->pool_bytes, &out->device));
    struct rank_context *me = rank_context();
    struct mesh_coord coord = mesh_coord(&run->mesh, MESH_DENSE, world->rank);
    *me = (struct rank_context){
        .rank = world->rank, .pp = coord.pp, .dp = coord.dp, .tp = coord.tp, .layer = NO_LAYER};
    rank_context_set_action("start");
    TRY(attach_observers(out, training));
    TRY(params_declare(&recipe->model, &run->mesh.degrees, recipe->layers.sequence_parallel, &out->params));
    NOTIFY_OBSERVERS(out, on_params_declared);
    int kv_replicas = params_kv_replicas(&recipe->model, run->mesh.degrees.tp);
    TRY(groups_create(world, &out->mesh, kv_replicas, &out->groups));
    TRY(add_ties(out));
    if (schedule_has_replicas(run->schedule))
        TRY(groups_add_replicas(world, out->groups));
    TRY(stream_create(out->device, "compute", &out->compute));
    TRY(create_weights(out, training));
    TRY(weights_initialize(&out->weights, out->compute, recipe->seed));
    TRY(create_amax(out));
    if (training)
        TRY(create_scale(out));
    TRY(create_executor(out, training));
    if (training)
        TRY(create_optimizer(out));
    NOTIFY_OBSERVERS(out, on_weights_initialized);
    return OK;
}

void rank_destroy(struct rank_state *state)
{
    // With post-validation a step returns before its update is complete: other ranks may still read the
    // weights. An error has no receiver here, as in stream_destroy().
    enum status ignored = state->compute != NULL ? stream_sync(state->compute) : OK;
    (void)ignored;
    executor_destroy(state->executor);
    key_value_cache_destroy(&state->cache);
    amax_history_destroy(state->amax);
    post_validation_destroy(state->validation);
    optimizer_destroy(state->optimizer);
    stream_destroy(state->staging.copies);
    buffer_free(&state->staging.buffer);
    buffer_free(&state->stats.buffer);
    free(state->stats.of_rank);
    buffer_free(&state->scale.buffer);
    batches_destroy(&state->batches);
    weights_destroy(&state->weights);
    stream_destroy(state->compute);
    groups_destroy(state->groups);
    event_log_close(&state->log);
    device_close(state->device);
    if (state->world != NULL)
        world_stop_observing(state->world);
    tracer_destroy(state->tracer);
    params_free(&state->params);
    *state = (struct rank_state){0};
}

/* Copies the loss scale of the next step to the device. */
enum status rank_send_scale(struct rank_state *state)
{
    state->scale.sent = (float)state->scale.value.scale;
    if (state->scale.buffer.bytes == 0)
        return OK;
    return copy_to_device(state->compute, state->scale.buffer.data, &state->scale.sent,
                          sizeof state->scale.sent);
}

int64_t rank_consumed_samples(const struct rank_state *state)
{
    return state->step * state->run->recipe->train.global_batch_size + state->sample_offset;
}

int64_t rank_updates(const struct rank_state *state)
{
    return state->step - state->skipped;
}
