// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/step.h"

#include "base/clock.h"
#include "trainer/engine/agree.h"

#include <math.h>
#include <string.h>

static bool has_documents(const struct run *run)
{
    return run->recipe->data.reset_attention_mask;
}

static struct batch_coord batch_coord_of(const struct rank_state *state, enum data_split split, uint64_t step)
{
    const struct recipe *recipe = state->run->recipe;
    return (struct batch_coord){
        .step = step,
        .global_batch_size = recipe->train.global_batch_size,
        .micro_batch_size = recipe->train.micro_batch_size,
        .dp_size = state->mesh.degrees.dp,
        .dp_rank = state->groups->coord.dp,
        .offset = split == DATA_TRAIN ? state->sample_offset : 0,
    };
}

/* Loads the microbatches of global batch `index` and sets the destinations of their losses: each sample has
 * its own slot in the global batch, independent of the layout. In a run without data, an
 * observer's on_batches_loaded fills them; a dry run only enqueues their copy. */
static enum status load_batches(struct rank_state *state, enum data_split split, uint64_t index)
{
    struct batch_coord coord = batch_coord_of(state, split, index);
    uint64_t begin = index * (uint64_t)coord.global_batch_size + (uint64_t)coord.offset;
    TRY(optimizer_begin(state->optimizer));
    if (state->run->data != NULL || state->run->is_planning)
        TRY(batches_load(&state->batches, state->compute, state->run->data, split, &coord,
                         has_documents(state->run)));
    double *tokens =
        state->validation != NULL && split == DATA_TRAIN ? post_validation_tokens(state->validation) : NULL;
    for (int j = 0; j < state->batches.count; j++) {
        coord.microbatch = j;
        struct batch *batch = &state->batches.list[j];
        int64_t at = (int64_t)(batch_first_sample(&coord) - begin);
        optimizer_loss_slots(state->optimizer, at, coord.micro_batch_size, &batch->sample_loss,
                             &batch->sample_tokens);
        if (tokens != NULL)
            batches_count_tokens(&state->batches, j, tokens + at);
    }
    return OK;
}

static enum status load(struct rank_state *state, enum data_split split, uint64_t index)
{
    rank_context_set_action("load");
    device_range_begin(state->device, "load");
    const double begin_s = clock_s();
    enum status status = load_batches(state, split, index);
    state->stats.data_s += clock_s() - begin_s;
    device_range_end(state->device);
    return status;
}

/* Runs the schedule and reduces the gradients. */
static enum status run_step(struct rank_state *state)
{
    const int64_t step = state->step + 1;
    rank_context()->step = (int)step;
    event_log_begin_step(&state->log, state->compute);
    if (!state->ahead) {
        TRY(load(state, DATA_TRAIN, (uint64_t)state->step));
        NOTIFY_OBSERVERS(state, on_batches_loaded, step);
    }
    state->ahead = false;
    TRY(rank_send_scale(state));
    TRY(executor_step(state->executor, state->batches.list));
    NOTIFY_OBSERVERS(state, on_gradients_reduced, step);
    rank_context_set_action("optimizer");
    device_range_begin(state->device, "reduce");
    TRY(optimizer_complete_gradients(state->optimizer));
    TRY(optimizer_report_squares(state->optimizer));
    device_range_end(state->device);
    NOTIFY_OBSERVERS(state, on_gradients_complete, step);
    return OK;
}

static bool wants_stop(const struct rank_state *state)
{
    return state->requests.stop || stop_requested(state->run->stop) ||
           (state->requests.stop_at_s > 0.0 && clock_s() >= state->requests.stop_at_s);
}

static enum request request_of(struct rank_state *state)
{
    if (wants_stop(state))
        return REQUEST_STOP;
    state->requests.saves = stop_saves(state->run->stop);
    if (state->requests.saves > state->requests.saves_completed)
        return REQUEST_SAVE;
    return state->requests.save_at_s > 0.0 && clock_s() >= state->requests.save_at_s ? REQUEST_SAVE
                                                                                     : REQUEST_NOTHING;
}

/* Sums over all chunks. */
static void collect_slots(const struct rank_state *state, struct slot_use out[SLOT_LIFETIMES])
{
    for (int chunk = 0; chunk < state->run->schedule->chunks; chunk++) {
        struct slot_use slots[SLOT_LIFETIMES];
        stash_slots(&executor_store(state->executor)->stash, chunk, slots);
        for (int kind = 0; kind < SLOT_LIFETIMES; kind++) {
            out[kind].slots += slots[kind].slots;
            out[kind].bytes += slots[kind].slots * slots[kind].bytes;
        }
    }
}

/* The times of this rank in the step, also for the monitor of its node. */
static void collect_times(struct rank_state *state, struct step_stats *out)
{
    // A device that is not synchronous waits when its host does not; its times are those of the step before.
    const bool on_host = device_traits(state->run->recipe->cluster.device)->synchronous;
    const int64_t waited_ns = progress_waited_ns();
    double lost_s;
    const struct timed_action *actions =
        event_log_actions(&state->log, state->step + (on_host ? 1 : 0), &lost_s);
    if (actions != NULL)
        step_stats_set_times(out, state->run->schedule, state->groups->coord.pp, actions, lost_s);
    out->wait_s = on_host ? 1e-9 * (double)(waited_ns - state->stats.waited_ns)
                          : fmax(out->span_s - out->compute_s, 0.0);
    out->data_s = state->stats.data_s;
    progress_step((struct progress_step){.step = state->step + 1,
                                         .compute_ns = (int64_t)(1e9 * out->fastest_s),
                                         .wait_ns = (int64_t)(1e9 * out->wait_s),
                                         .data_ns = (int64_t)(1e9 * out->data_s)});
    state->stats.waited_ns = waited_ns;
    state->stats.data_s = 0.0;
}

static void collect_stats(struct rank_state *state, struct step_stats *out)
{
    const struct memory_use use = device_memory(state->device);
    *out = (struct step_stats){.rank = state->world->rank,
                               .request = request_of(state),
                               .writes = state->stats.is_writing,
                               .peak_total_bytes = use.peak_total_bytes};
    memcpy(out->peak_bytes, use.peak_bytes, sizeof out->peak_bytes);
    collect_slots(state, out->slots);
    collect_times(state, out);
}

/* Enqueues the all-gather of the statistics; they are available together with the result of the step. */
static enum status exchange_stats(struct rank_state *state)
{
    const int64_t elements = sizeof(struct step_stats) / sizeof(int64_t);
    struct step_stats *all = state->stats.buffer.data, *mine = &all[state->world->rank];
    struct step_stats *sent = &state->stats.of_rank[state->world->rank];
    collect_stats(state, sent);
    TRY(copy_to_device(state->compute, mine, sent, sizeof *sent));
    TRY(group_all_gather(state->groups->world, state->compute, tensor_1d(mine, I64, elements),
                         tensor_1d(all, I64, elements * state->world->size)));
    return copy_to_host(state->compute, state->stats.of_rank, all, state->stats.buffer.bytes);
}

/* Runs the forward passes of the next step that may run before it is confirmed. */
static enum status look_ahead(struct rank_state *state)
{
    rank_context()->step = (int)state->step + 1;
    TRY(load(state, DATA_TRAIN, (uint64_t)state->step));
    TRY(executor_look_ahead(state->executor, state->batches.list));
    state->ahead = true;
    return OK;
}

/* Post-validated update (post_validation.h). After the verdict, either all ranks have looked ahead or
 * none. */
static enum status validated_update(struct rank_state *state, int64_t step, bool may_guess,
                                    struct step_result *out)
{
    bool guessed;
    struct verdict verdict;
    collect_stats(state, state->stats.of_rank);
    TRY(post_validation_pass_down(state->validation, rank_updates(state) + 1, may_guess, state->stats.of_rank,
                                  &guessed));
    state->step = step;
    if (guessed)
        TRY(look_ahead(state));
    rank_context()->step = (int)step;
    rank_context_set_action("verdict");
    TRY(post_validation_finish(state->validation, &verdict, out));
    step_stats_summarize(verdict.notes, state->world->size, &state->stats.all);
    if (!verdict.ahead)
        return OK;
    if (!verdict.wrong)
        return state->ahead ? OK : look_ahead(state);
    state->ahead = false;
    event_log_drop(&state->log, step + 1);
    return executor_drop_ahead(state->executor);
}

/* An observer must not see a rank that has already started the next step. */
static bool observes_steps(const struct rank_state *state)
{
    for (const struct step_observer *o = state->observers; o != NULL; o = o->next)
        if (o->on_batches_loaded != NULL || o->on_step_end != NULL)
            return true;
    return false;
}

static enum status step(struct rank_state *state, bool continues, struct step_result *out)
{
    const int64_t number = state->step + 1;
    const bool may_guess = continues && !observes_steps(state);
    state->stats.waited_ns +=
        progress_waited_ns() - state->stats.waited_at_end_ns; // since then in saves or evaluations
    state->has_valid_loss = false;
    TRY(run_step(state));
    NOTIFY_OBSERVERS(state, before_update, number);
    if (state->validation != NULL) {
        TRY(validated_update(state, number, may_guess, out));
    } else {
        device_range_begin(state->device, "update");
        TRY(amax_history_reduce(state->amax));
        TRY(optimizer_update(state->optimizer, rank_updates(state) + 1));
        device_range_end(state->device);
        TRY(exchange_stats(state));
        TRY(optimizer_finish(state->optimizer, out)); // synchronizes
        step_stats_summarize(state->stats.of_rank, state->world->size, &state->stats.all);
        if (!out->skipped) // after a skipped step the loss scale changes
            TRY(amax_history_update(state->amax));
        state->step = number;
    }
    event_log_end_step(&state->log, number);
    NOTIFY_OBSERVERS(state, after_update, number);
    state->stats.waited_at_end_ns = progress_waited_ns();
    state->skipped += out->skipped;
    loss_scale_step(&state->scale.value, out->skipped);
    NOTIFY_OBSERVERS(state, on_step_end, number, out);
    return OK;
}

enum status rank_step(struct rank_state *state, struct step_result *out)
{
    return step(state, false, out);
}

enum status rank_step_look_ahead(struct rank_state *state, struct step_result *out)
{
    return step(state, true, out);
}

/* Sets *stop on every rank as soon as one rank has received the signal. */
static enum status query_stop(struct rank_state *state, bool *stop)
{
    double requested = wants_stop(state) ? 1.0 : 0.0;
    TRY(rank_agree_max(state, &requested, 1));
    *stop = requested > 0.0;
    return OK;
}

enum status rank_evaluate(struct rank_state *state, double *loss, bool *stop)
{
    int64_t iterations = state->run->recipe->train.eval_iters;
    double sum = 0.0, tokens = 0.0;
    CHECK(!state->ahead); // its forward activations occupy these slots
    for (int64_t i = 0; i < iterations; i++) {
        struct step_result result;
        TRY(query_stop(state, stop));
        if (*stop)
            return OK;
        TRY(load(state, DATA_VALID, (uint64_t)i));
        NOTIFY_OBSERVERS(state, on_batches_loaded, (int64_t)0);
        TRY(executor_evaluate(state->executor, state->batches.list, state->batches.count));
        rank_context_set_action("evaluate");
        TRY(optimizer_reduce_report(state->optimizer));
        TRY(optimizer_finish(state->optimizer, &result));
        sum += result.loss * result.tokens;
        tokens += result.tokens;
    }
    *loss = tokens > 0.0 ? sum / tokens : NAN;
    state->has_valid_loss = isfinite(*loss);
    state->valid_loss = *loss;
    return OK;
}

/* ---- which gradient or loss is not finite, and what helps ---- */

/* What diverges most often. */
#define DIVERGED                                                                  \
    "resume from an earlier checkpoint with a lower optimizer.lr (%g), a longer " \
    "optimizer.lr_warmup_iters or a lower optimizer.clip_grad (%g)"

/* The first rank that holds this tensor-parallel share of a row. */
static int rank_of_row(const struct rank_state *state, int row, int share)
{
    const struct run *run = state->run;
    struct mesh_coord coord = {.tp = share, .pp = run_rank_of_layer(run, state->params.list[row].layer)};
    return mesh_rank(&run->mesh, state->params.list[row].mesh, coord);
}

/* Reports a gradient overflow that a smaller loss scale would avoid. */
static enum status overflow_error(const struct rank_state *state, const struct step_result *result,
                                  const char *name)
{
    const struct loss_scale *scale = &state->scale.value;
    int rank = rank_of_row(state, result->not_finite_param, result->not_finite_share);
    if (scale->fixed)
        return fail(
            NOT_FINITE,
            "step %lld: the gradient of %s is not finite on rank %d, after %d consecutive skipped steps: "
            "precision.loss_scale %g is too large; use a smaller one, or 0 for dynamic loss scaling",
            (long long)state->step, name, rank, (int)scale->skipped, scale->scale);
    return fail(
        NOT_FINITE,
        "step %lld: the gradient of %s is not finite on rank %d (loss %g) at the smallest loss scale, "
        "precision.min_loss_scale %g; use precision.params_dtype=bf16, which has the range of fp32",
        (long long)state->step, name, rank, result->loss, scale->min_scale);
}

enum status rank_check_finite(const struct rank_state *state, const struct step_result *result)
{
    bool overflows = result->skipped && isfinite(result->loss);
    if (!state->run->recipe->resilience.check_for_nan_in_loss_and_grad ||
        (overflows && !state->scale.value.stuck))
        return OK;
    const char *name =
        result->not_finite_param >= 0 ? state->params.list[result->not_finite_param].name : NULL;
    if (name != NULL && overflows)
        return overflow_error(state, result, name);
    if (name != NULL)
        return fail(NOT_FINITE, "step %lld: the gradient of %s is not finite on rank %d (loss %g); " DIVERGED,
                    (long long)state->step, name,
                    rank_of_row(state, result->not_finite_param, result->not_finite_share), result->loss,
                    state->run->recipe->optimizer.lr, state->run->recipe->optimizer.clip_grad);
    if (!isfinite(result->loss))
        return fail(NOT_FINITE, "step %lld: the loss is %g; " DIVERGED, (long long)state->step, result->loss,
                    state->run->recipe->optimizer.lr, state->run->recipe->optimizer.clip_grad);
    return OK;
}
