// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint_state.h"

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
    *out = (struct state_tensor){
        .shard = {.dtype = dtype, .ndim = ndim, .dim = {rows, columns}, .count = {rows, columns}}};
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

enum status state_list(const struct rank_state *w, struct state_tensor **out, int *count)
{
    *count = 0;
    *out = calloc((size_t)w->params.count + 1, sizeof **out);
    if (*out == NULL)
        return fail(NO_MEMORY, "no memory for the list of checkpoint tensors");
    for (int row = 0; row < w->params.count; row++) {
        int64_t columns = 0;
        const float *history = amax_history_of(w->amax, row, &columns);
        if (history == NULL)
            continue;
        struct state_tensor *state = &(*out)[(*count)++];
        add_tensor(state, SAFETENSORS_F32, 2, OPERAND_COUNT, columns);
        amax_name(w->params.rows[row].name, state->shard.name);
        state->bytes = history;
    }
    if (w->loss_scale.scale > 0.0 && !w->loss_scale.fixed)
        add_loss_scale(&w->loss_scale, &(*out)[(*count)++]);
    return OK;
}

/* ---- delayed scaling ---- */

/* Reads the history of one row, with as many steps as were saved; the caller frees it. */
static enum status read_amax(struct source *s, const struct shard *tensor, float **out)
{
    struct slice whole = {.ndim = 2};
    const struct shard *shards;
    int count;
    if (tensor->ndim != 2 || tensor->dim[0] != OPERAND_COUNT)
        return fail(BAD_CHECKPOINT, "%s: %s has %lld lines, not %d", s->folder, tensor->name,
                    (long long)tensor->dim[0], (int)OPERAND_COUNT);
    for (int d = 0; d < 2; d++)
        whole.count[d] = whole.padded[d] = tensor->dim[d];
    *out = calloc((size_t)slice_padded(&whole) + 1, sizeof **out);
    if (*out == NULL)
        return fail(NO_MEMORY, "no memory for %s", tensor->name);
    TRY(source_find(s, tensor->name, &whole, &shards, &count));
    for (int i = 0; i < count; i++)
        TRY(source_read(s, &shards[i], false, &whole, *out));
    return OK;
}

/* Every rank reads all histories. A checkpoint of a run with another low-precision format has none. */
enum status state_load_amax(struct rank_state *w, struct source *s)
{
    int missing = 0;
    for (int row = 0; row < w->params.count && w->amax != NULL; row++) {
        char name[SHARD_NAME_CHARS];
        struct shard tensor;
        int64_t steps;
        float *values = NULL;
        amax_name(w->params.rows[row].name, name);
        bool saved = source_tensor(s, name, &tensor);
        if (amax_history_of(w->amax, row, &steps) == NULL)
            continue;
        enum status status = saved ? read_amax(s, &tensor, &values) : OK;
        if (status == OK && saved)
            amax_history_put(w->amax, row, values, tensor.dim[1]);
        missing += !saved;
        free(values);
        TRY(status);
    }
    if (missing > 0 && w->world->rank == 0)
        print_line(stderr,
                   "warning: %s has no amax history for %d weights: precision.scaling delayed starts "
                   "with scales of 1",
                   s->folder, missing);
    return amax_history_settle(w->amax);
}

/* ---- the loss scale ---- */

/* True for a whole number that a double represents exactly. */
static bool is_count(double number)
{
    return number >= 0.0 && number <= 0x1p53 && number == floor(number);
}

enum status state_load_loss_scale(const struct rank_state *w, struct source *s, struct loss_scale *out)
{
    const struct manifest *m = &s->manifest;
    double numbers[SCALE_NUMBERS] = {m->loss_scale.scale, (double)m->loss_scale.good_steps,
                                     (double)m->loss_scale.hysteresis};
    bool found = false;
    if (m->version > 1)
        TRY(source_read_f64(s, loss_scale_name, numbers, SCALE_NUMBERS, &found));
    if (found &&
        !(numbers[0] > 0.0 && numbers[0] <= LOSS_SCALE_MOST && is_count(numbers[1]) && is_count(numbers[2])))
        return fail(BAD_CHECKPOINT, "%s: %s is %g, %g, %g: not a scale and two counts", s->folder,
                    loss_scale_name, numbers[0], numbers[1], numbers[2]);
    *out = loss_scale_of(w->run->recipe);
    loss_scale_resume(out, numbers[0], (int64_t)numbers[1], (int64_t)numbers[2]);
    return OK;
}
