// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/rank_state.h"

#include "base/clock.h"
#include "base/machine.h"
#include "kernels/device_plan.h"
#include "parallel/observe_world.h"
#include "trainer/engine/agree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

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

static enum status open_device(const struct run *run, const struct world *world, size_t pool_bytes,
                               struct device **out)
{
    struct device_options options = run_device_options(run, run_threads(run, world->size));
    options.index = world->device_index;
    if (device_traits(options.name)->has_memory_pool)
        options.reserve_bytes = pool_bytes;
    return device_open(&options, out);
}

/* Calls a function of each observer that has it. */
#define NOTIFY(state, function, ...)                                                     \
    for (const struct step_observer *o_ = (state)->observers; o_ != NULL; o_ = o_->next) \
    TRY(o_->function != NULL ? o_->function(o_->context, state, ##__VA_ARGS__) : OK)

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

static enum status create_weights(struct rank_state *w, bool training)
{
    const struct run *run = w->run;
    int *layers = calloc((size_t)run->recipe->model.num_layers + 2, sizeof *layers);
    if (layers == NULL)
        return fail(NO_MEMORY, "no memory for the list of layers");
    int count = layers_held(run, w->groups->coord.pp, layers);
    struct weights_config config = {
        .device = w->device,
        .params = &w->params,
        .coord = w->groups->coord,
        .layers = layers,
        .layer_count = count,
        .working = recipe_working_dtype(w->run->recipe),
        .main = recipe_main_dtype(w->run->recipe),
        .training = training,
        .offload_moments = w->run->recipe->memory.offload_optimizer,
        .groups = w->groups,
        .options = &run->recipe->data_parallel,
    };
    enum status status = weights_create(&config, &w->weights);
    free(layers);
    return status;
}

static enum status create_amax(struct rank_state *w)
{
    struct amax_history_config config = {
        .recipe = &w->run->recipe->precision,
        .params = &w->params,
        .groups = w->groups,
        .device = w->device,
        .compute = w->compute,
    };
    return amax_history_create(&config, &w->amax);
}

static enum status create_executor(struct rank_state *w, bool training)
{
    const struct recipe *recipe = w->run->recipe;
    const bool shorter = !training && w->run->row_tokens > 0;
    const struct executor_config config = rank_executor_config(
        w, training, recipe->train.micro_batch_size, shorter ? w->run->row_tokens : recipe->model.seq_length);
    return executor_create(&config, &w->executor);
}

static enum status create_validation(struct rank_state *w)
{
    struct post_validation_config config = {
        .world = w->world,
        .groups = w->groups,
        .weights = &w->weights,
        .compute = w->compute,
        .optimizer = w->optimizer,
        .global_batch_size = w->run->recipe->train.global_batch_size,
        .note_bytes = sizeof(struct step_stats),
    };
    return post_validation_create(&config, &w->validation);
}

/* Declares the tied weights between the first and the last stage, in the direction in which this rank holds
 * one of them. */
static enum status add_ties(struct rank_state *w)
{
    const struct schedule *schedule = w->run->schedule;
    int last = schedule->stages - 1, mine = w->groups->coord.pp;
    const int *second = schedule->rank_of[1];
    const int *rank_of = schedule->rank_of[second[0] == mine || second[last] == mine ? 1 : 0];
    return rank_of[0] != rank_of[last] ? groups_add_ties(w->world, w->groups, rank_of[0], rank_of[last]) : OK;
}

static enum status create_optimizer(struct rank_state *w)
{
    const struct recipe *recipe = w->run->recipe;
    struct optimizer_config config = {
        .recipe = &recipe->optimizer,
        .groups = w->groups,
        .weights = &w->weights,
        .compute = w->compute,
        .global_batch_size = recipe->train.global_batch_size,
        .seed = recipe->seed,
        .offload = recipe->memory.offload_optimizer,
        .loss_scale = w->scale_buffer.data,
    };
    int m = (int)recipe_microbatches(recipe);
    TRY(optimizer_create(&config, &w->optimizer));
    const size_t stats_bytes = (size_t)w->world->size * sizeof *w->stats_of_rank;
    w->stats_of_rank = calloc((size_t)w->world->size, sizeof *w->stats_of_rank);
    if (w->stats_of_rank == NULL)
        return fail(NO_MEMORY, "no memory for the statistics of %d ranks", w->world->size);
    TRY(buffer_alloc(w->device, PART_DATA, stats_bytes, &w->stats_buffer));
    if (recipe->pipeline.optimizer_post_validation)
        TRY(create_validation(w));
    return batches_create(w->device, m, recipe->train.micro_batch_size, recipe->model.seq_length,
                          &w->batches);
}

/* Copies the loss scale of the next step to the device. */
static enum status send_scale(struct rank_state *w)
{
    w->scale_sent = (float)w->loss_scale.scale;
    if (w->scale_buffer.bytes == 0)
        return OK;
    return copy_to_device(w->compute, w->scale_buffer.data, &w->scale_sent, sizeof w->scale_sent);
}

static enum status create_scale(struct rank_state *w)
{
    w->loss_scale = loss_scale_of(w->run->recipe);
    if (w->loss_scale.scale > 0.0)
        TRY(buffer_alloc(w->device, PART_DATA, sizeof w->scale_sent, &w->scale_buffer));
    return send_scale(w);
}

/* Before any comm is created. */
static enum status attach_observers(struct rank_state *w, bool training)
{
    const struct recipe *recipe = w->run->recipe;
    TRY(message_recorder_attach(&w->recorder, w->world));
    TRY(tracer_create(&w->run->tracing, w->device, w->world, &w->tracer));
    if (!training || !device_computes(w->device))
        return OK;
    const int pp = mesh_coord(&w->mesh, MESH_DENSE, w->world->rank).pp;
    const bool profiles = recipe->profile.timeline;
    const struct event_log_config config = {
        .device = w->device,
        .world = w->world,
        .actions = w->run->schedule->ranks[pp].count,
        .first = profiles ? recipe->profile.profile_step_start : 0,
        .last = profiles ? recipe_last_profiled_step(recipe) : -1,
    };
    return event_log_attach(&config, &w->log);
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
    NOTIFY(out, on_params_declared);
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
    NOTIFY(out, on_weights_initialized);
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
    buffer_free(&state->stats_buffer);
    free(state->stats_of_rank);
    buffer_free(&state->scale_buffer);
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

/* ---- the step ---- */

static bool has_documents(const struct run *run)
{
    return run->recipe->data.reset_attention_mask;
}

static struct batch_coord batch_coord_of(const struct rank_state *w, enum data_split split, uint64_t step)
{
    const struct recipe *recipe = w->run->recipe;
    return (struct batch_coord){
        .step = step,
        .global_batch_size = recipe->train.global_batch_size,
        .micro_batch_size = recipe->train.micro_batch_size,
        .dp_size = w->mesh.degrees.dp,
        .dp_rank = w->groups->coord.dp,
        .offset = split == DATA_TRAIN ? w->sample_offset : 0,
    };
}

/* Loads the microbatches of global batch `index` and sets the destinations of their losses: each sample has
 * its own slot in the global batch, independent of the layout. In a run without data, an
 * observer's on_batches_loaded fills them; a dry run only enqueues their copy. */
static enum status load_batches(struct rank_state *w, enum data_split split, uint64_t index)
{
    struct batch_coord coord = batch_coord_of(w, split, index);
    uint64_t begin = index * (uint64_t)coord.global_batch_size + (uint64_t)coord.offset;
    TRY(optimizer_begin(w->optimizer));
    if (w->run->data != NULL || w->run->is_planning)
        TRY(batches_load(&w->batches, w->compute, w->run->data, split, &coord, has_documents(w->run)));
    double *tokens =
        w->validation != NULL && split == DATA_TRAIN ? post_validation_tokens(w->validation) : NULL;
    for (int j = 0; j < w->batches.count; j++) {
        coord.microbatch = j;
        struct batch *batch = &w->batches.list[j];
        int64_t at = (int64_t)(batch_first_sample(&coord) - begin);
        optimizer_loss_slots(w->optimizer, at, coord.micro_batch_size, &batch->sample_loss,
                             &batch->sample_tokens);
        if (tokens != NULL)
            batches_count_tokens(&w->batches, j, tokens + at);
    }
    return OK;
}

static enum status load(struct rank_state *w, enum data_split split, uint64_t index)
{
    rank_context_set_action("load");
    device_range_begin(w->device, "load");
    const double begin_s = clock_s();
    enum status status = load_batches(w, split, index);
    w->data_s += clock_s() - begin_s;
    device_range_end(w->device);
    return status;
}

/* Runs the schedule and reduces the gradients. */
static enum status run_step(struct rank_state *w)
{
    const int64_t step = w->step + 1;
    rank_context()->step = (int)step;
    event_log_begin_step(&w->log, w->compute);
    if (!w->ahead) {
        TRY(load(w, DATA_TRAIN, (uint64_t)w->step));
        NOTIFY(w, on_batches_loaded, step);
    }
    w->ahead = false;
    TRY(send_scale(w));
    TRY(executor_step(w->executor, w->batches.list));
    NOTIFY(w, on_gradients_reduced, step);
    rank_context_set_action("optimizer");
    device_range_begin(w->device, "reduce");
    TRY(optimizer_complete_gradients(w->optimizer));
    TRY(optimizer_report_squares(w->optimizer));
    device_range_end(w->device);
    NOTIFY(w, on_gradients_complete, step);
    return OK;
}

static bool wants_stop(const struct rank_state *w)
{
    return w->wants_stop || stop_requested(w->run->stop) || (w->stop_at_s > 0.0 && clock_s() >= w->stop_at_s);
}

static enum request request_of(struct rank_state *w)
{
    if (wants_stop(w))
        return REQUEST_STOP;
    w->saves_asked = stop_saves(w->run->stop);
    if (w->saves_asked > w->saves_done)
        return REQUEST_SAVE;
    return w->save_at_s > 0.0 && clock_s() >= w->save_at_s ? REQUEST_SAVE : REQUEST_NOTHING;
}

/* Sums over all chunks. */
static void collect_slots(const struct rank_state *w, struct slot_use out[SLOT_LIFETIMES])
{
    for (int chunk = 0; chunk < w->run->schedule->chunks; chunk++) {
        struct slot_use slots[SLOT_LIFETIMES];
        stash_slots(&executor_store(w->executor)->stash, chunk, slots);
        for (int kind = 0; kind < SLOT_LIFETIMES; kind++) {
            out[kind].slots += slots[kind].slots;
            out[kind].bytes += slots[kind].slots * slots[kind].bytes;
        }
    }
}

/* The times of this rank in the step, also for the monitor of its node. */
static void collect_times(struct rank_state *w, struct step_stats *out)
{
    // A device that is not synchronous waits when its host does not; its times are those of the step before.
    const bool on_host = device_traits(w->run->recipe->cluster.device)->synchronous;
    const int64_t waited_ns = progress_waited_ns();
    double lost_s;
    const struct timed_action *actions = event_log_actions(&w->log, w->step + (on_host ? 1 : 0), &lost_s);
    if (actions != NULL)
        step_stats_set_times(out, w->run->schedule, w->groups->coord.pp, actions, lost_s);
    out->wait_s =
        on_host ? 1e-9 * (double)(waited_ns - w->waited_ns) : fmax(out->span_s - out->compute_s, 0.0);
    out->data_s = w->data_s;
    progress_step((struct progress_step){.step = w->step + 1,
                                         .compute_ns = (int64_t)(1e9 * out->fastest_s),
                                         .wait_ns = (int64_t)(1e9 * out->wait_s),
                                         .data_ns = (int64_t)(1e9 * out->data_s)});
    w->waited_ns = waited_ns;
    w->data_s = 0.0;
}

static void collect_stats(struct rank_state *w, struct step_stats *out)
{
    const struct memory_use use = device_memory(w->device);
    *out = (struct step_stats){.rank = w->world->rank,
                               .request = request_of(w),
                               .writes = w->is_writing,
                               .peak_total_bytes = use.peak_total_bytes};
    memcpy(out->peak_bytes, use.peak_bytes, sizeof out->peak_bytes);
    collect_slots(w, out->slots);
    collect_times(w, out);
}

/* Enqueues the all-gather of the statistics; they are available together with the result of the step. */
static enum status exchange_stats(struct rank_state *w)
{
    const int64_t elements = sizeof(struct step_stats) / sizeof(int64_t);
    struct step_stats *all = w->stats_buffer.data, *mine = &all[w->world->rank];
    struct step_stats *sent = &w->stats_of_rank[w->world->rank];
    collect_stats(w, sent);
    TRY(copy_to_device(w->compute, mine, sent, sizeof *sent));
    TRY(group_all_gather(w->groups->world, w->compute, tensor_1d(mine, I64, elements),
                         tensor_1d(all, I64, elements * w->world->size)));
    return copy_to_host(w->compute, w->stats_of_rank, all, w->stats_buffer.bytes);
}

/* Runs the forward passes of the next step that may run before it is confirmed. */
static enum status look_ahead(struct rank_state *w)
{
    rank_context()->step = (int)w->step + 1;
    TRY(load(w, DATA_TRAIN, (uint64_t)w->step));
    TRY(executor_look_ahead(w->executor, w->batches.list));
    w->ahead = true;
    return OK;
}

/* Post-validated update (post_validation.h). After the verdict, either all ranks have looked ahead or
 * none. */
static enum status validated_update(struct rank_state *w, int64_t step, bool may_guess,
                                    struct step_result *out)
{
    bool guessed;
    struct verdict verdict;
    collect_stats(w, w->stats_of_rank);
    TRY(post_validation_pass_down(w->validation, rank_updates(w) + 1, may_guess, w->stats_of_rank, &guessed));
    w->step = step;
    if (guessed)
        TRY(look_ahead(w));
    rank_context()->step = (int)step;
    rank_context_set_action("verdict");
    TRY(post_validation_finish(w->validation, &verdict, out));
    step_stats_summarize(verdict.notes, w->world->size, &w->stats);
    if (!verdict.ahead)
        return OK;
    if (!verdict.wrong)
        return w->ahead ? OK : look_ahead(w);
    w->ahead = false;
    event_log_drop(&w->log, step + 1);
    return executor_drop_ahead(w->executor);
}

/* An observer must not see a rank that has already started the next step. */
static bool observes_steps(const struct rank_state *w)
{
    for (const struct step_observer *o = w->observers; o != NULL; o = o->next)
        if (o->on_batches_loaded != NULL || o->on_step_end != NULL)
            return true;
    return false;
}

static enum status step(struct rank_state *w, bool continues, struct step_result *out)
{
    const int64_t number = w->step + 1;
    const bool may_guess = continues && !observes_steps(w);
    w->waited_ns += progress_waited_ns() - w->waited_by_end_ns; // since then in saves or evaluations
    w->has_valid_loss = false;
    TRY(run_step(w));
    NOTIFY(w, before_update, number);
    if (w->validation != NULL) {
        TRY(validated_update(w, number, may_guess, out));
    } else {
        device_range_begin(w->device, "update");
        TRY(amax_history_reduce(w->amax));
        TRY(optimizer_update(w->optimizer, rank_updates(w) + 1));
        device_range_end(w->device);
        TRY(exchange_stats(w));
        TRY(optimizer_finish(w->optimizer, out)); // synchronizes
        step_stats_summarize(w->stats_of_rank, w->world->size, &w->stats);
        if (!out->skipped) // after a skipped step the loss scale changes
            TRY(amax_history_update(w->amax));
        w->step = number;
    }
    event_log_end_step(&w->log, number);
    NOTIFY(w, after_update, number);
    w->waited_by_end_ns = progress_waited_ns();
    w->skipped += out->skipped;
    loss_scale_step(&w->loss_scale, out->skipped);
    NOTIFY(w, on_step_end, number, out);
    return OK;
}

int64_t rank_consumed_samples(const struct rank_state *w)
{
    return w->step * w->run->recipe->train.global_batch_size + w->sample_offset;
}

int64_t rank_updates(const struct rank_state *w)
{
    return w->step - w->skipped;
}

enum status rank_step(struct rank_state *w, struct step_result *out)
{
    return step(w, false, out);
}

enum status rank_step_look_ahead(struct rank_state *w, struct step_result *out)
{
    return step(w, true, out);
}

/* Sets *stop on every rank as soon as one rank has received the signal. */
static enum status query_stop(struct rank_state *w, bool *stop)
{
    double requested = wants_stop(w) ? 1.0 : 0.0;
    TRY(rank_agree_max(w, &requested, 1));
    *stop = requested > 0.0;
    return OK;
}

enum status rank_evaluate(struct rank_state *w, double *loss, bool *stop)
{
    int64_t iterations = w->run->recipe->train.eval_iters;
    double sum = 0.0, tokens = 0.0;
    CHECK(!w->ahead); // its forward activations occupy these slots
    for (int64_t i = 0; i < iterations; i++) {
        struct step_result result;
        TRY(query_stop(w, stop));
        if (*stop)
            return OK;
        TRY(load(w, DATA_VALID, (uint64_t)i));
        NOTIFY(w, on_batches_loaded, (int64_t)0);
        TRY(executor_evaluate(w->executor, w->batches.list, w->batches.count));
        rank_context_set_action("evaluate");
        TRY(optimizer_reduce_report(w->optimizer));
        TRY(optimizer_finish(w->optimizer, &result));
        sum += result.loss * result.tokens;
        tokens += result.tokens;
    }
    *loss = tokens > 0.0 ? sum / tokens : NAN;
    w->has_valid_loss = isfinite(*loss);
    w->valid_loss = *loss;
    return OK;
}
