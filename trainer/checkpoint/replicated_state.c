// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/replicated_state.h"

#include "base/memory.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/engine/agree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char loss_scale_name[] = "precision.loss_scale";
enum { SCALE_NUMBERS = 3 };

/* ---- writing ---- */

static void add_tensor(struct state_tensor *out, enum safetensors_dtype dtype, int ndim, int64_t rows,
                       int64_t columns)
{
    *out = (struct state_tensor){.shard = {.dtype = dtype, .dim = {rows, columns}}};
    out->shard.slice = slice_whole(ndim, out->shard.dim);
}

static void add_loss_scale(const struct loss_scale *scale, struct state_tensor *out)
{
    add_tensor(out, SAFETENSORS_F64, 1, SCALE_NUMBERS, 1);
    snprintf(out->shard.name, sizeof out->shard.name, "%s", loss_scale_name);
    out->values[0] = scale->scale;
    out->values[1] = (double)scale->good_steps;
    out->values[2] = (double)scale->hysteresis;
    out->bytes = out->values;
}

void state_list(const struct rank_state *w, struct state_tensor **out, int *count)
{
    *count = 0;
    *out = memory_zeroed((size_t)w->params.count + 1, sizeof **out, "the state that all ranks hold");
    for (int param = 0; param < w->params.count; param++) {
        int64_t columns = 0;
        const float *history = amax_history_get(w->amax, param, &columns);
        if (history == NULL)
            continue;
        struct state_tensor *state = &(*out)[(*count)++];
        add_tensor(state, SAFETENSORS_F32, 2, OPERAND_COUNT, columns);
        amax_name(w->params.list[param].name, state->shard.name);
        state->bytes = history;
    }
    if (w->scale.value.scale > 0.0 && !w->scale.value.fixed)
        add_loss_scale(&w->scale.value, &(*out)[(*count)++]);
}

/* ---- delayed scaling ---- */

static enum status check_amax(const struct checkpoint_reader *s, const struct shard *tensor)
{
    return tensor->slice.ndim == 2 && tensor->dim[0] == OPERAND_COUNT
               ? OK
               : fail(BAD_CHECKPOINT, "%s: %s has %lld lines, not %d", s->folder, tensor->name,
                      (long long)tensor->dim[0], (int)OPERAND_COUNT);
}

/* Reads the history of one parameter, with as many steps as were saved. */
static enum status read_amax(struct checkpoint_reader *s, const struct shard *tensor, float *out)
{
    const struct shard *shards;
    int count;
    TRY(checkpoint_reader_find(s, tensor->name, &tensor->slice, &shards, &count));
    for (int i = 0; i < count; i++)
        TRY(checkpoint_reader_read(s, &shards[i], false, &tensor->slice, out));
    return OK;
}

/* Broadcasts `count` numbers of rank `root`. */
static enum status broadcast_floats(struct rank_state *w, int root, float *values, int64_t count)
{
    struct staging staging;
    const size_t bytes = (size_t)count * sizeof *values;
    if (w->world->size == 1)
        return OK;
    TRY(staging_open(w, bytes, &staging));
    enum status status = copy_to_device(w->compute, staging.data, values, bytes);
    if (status == OK)
        status = group_broadcast(w->groups->world, w->compute, tensor_1d(staging.data, F32, count), root);
    if (status == OK)
        status = copy_to_host(w->compute, values, staging.data, bytes);
    if (status == OK)
        status = stream_sync(w->compute);
    staging_close(&staging);
    return status;
}

/* Reads the history of one parameter on one rank, and broadcasts it. The file dictates its size. */
static enum status load_history(struct rank_state *w, struct checkpoint_reader *s, int param,
                                const struct shard *tensor)
{
    const int root = checkpoint_reader_root(s);
    AUTO_FREE float *values = calloc((size_t)slice_count(&tensor->slice) + 1, sizeof *values);
    enum status status =
        values != NULL ? check_amax(s, tensor) : fail(NO_MEMORY, "no memory for %s", tensor->name);
    if (status == OK && w->world->rank == root)
        status = read_amax(s, tensor, values);
    TRY(rank_agree(w, status));
    TRY(broadcast_floats(w, root, values, slice_count(&tensor->slice)));
    amax_history_set(w->amax, param, values, tensor->dim[1]);
    return OK;
}

/* A checkpoint of a run with another low-precision format has no histories. */
enum status state_load_amax(struct rank_state *state, struct checkpoint_reader *source)
{
    int missing = 0;
    for (int param = 0; param < state->params.count && state->amax != NULL; param++) {
        char name[SHARD_NAME_CHARS];
        struct shard tensor;
        int64_t steps;
        amax_name(state->params.list[param].name, name);
        if (amax_history_get(state->amax, param, &steps) == NULL)
            continue;
        if (checkpoint_reader_tensor(source, name, &tensor))
            TRY(load_history(state, source, param, &tensor));
        else
            missing++;
    }
    if (missing > 0 && state->world->rank == 0)
        print_line(stderr,
                   "warning: %s has no amax history for %d weights: precision.scaling delayed starts "
                   "with scales of 1",
                   source->folder, missing);
    return amax_history_upload(state->amax);
}

/* ---- the loss scale ---- */

/* True for a whole number that a double represents exactly. */
static bool is_count(double number)
{
    return number >= 0.0 && number <= 0x1p53 && number == floor(number);
}

/* Reads the scale and its counters. */
static enum status read_loss_scale(struct checkpoint_reader *s, double numbers[SCALE_NUMBERS])
{
    bool found;
    TRY(checkpoint_reader_read_f64(s, loss_scale_name, numbers, SCALE_NUMBERS, &found));
    if (found &&
        !(numbers[0] > 0.0 && numbers[0] <= LOSS_SCALE_MAX && is_count(numbers[1]) && is_count(numbers[2])))
        return fail(BAD_CHECKPOINT, "%s: %s is %g, %g, %g: not a scale and two counts", s->folder,
                    loss_scale_name, numbers[0], numbers[1], numbers[2]);
    return OK;
}

enum status state_load_loss_scale(struct rank_state *state, struct checkpoint_reader *source,
                                  struct loss_scale *out)
{
    double numbers[SCALE_NUMBERS] = {0.0};
    TRY(rank_agree(
        state, state->world->rank == checkpoint_reader_root(source) ? read_loss_scale(source, numbers) : OK));
    TRY(rank_agree_max(state, numbers, SCALE_NUMBERS)); // all others have zeros
    *out = loss_scale_of(state->run->recipe);
    loss_scale_resume(out, numbers[0], (int64_t)numbers[1], (int64_t)numbers[2]);
    return OK;
}
