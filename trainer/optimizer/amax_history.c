// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/amax_history.h"

#include "base/memory.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct amax_history {
    struct amax_history_config config;
    int64_t length;
    int64_t slots;        // operands of all rows; those of rows that are not quantized stay 0
    float *lines;         // [slots][length], newest first
    float *used, *seen;   // [slots] each, host copies
    struct buffer device; // f32: used[slots] seen[slots]
};

static bool has_history(const struct param *row, int64_t num_layers)
{
    return row->ndim == 2 && row->layer >= 0 && row->layer < num_layers;
}

static struct tensor vector_of(const struct amax_history *h, int64_t index)
{
    return tensor_1d((float *)h->device.data + index * h->slots, F32, h->slots);
}

static enum status fill_history(struct amax_history *h)
{
    size_t slots = (size_t)h->slots;
    h->lines =
        memory_zeroed(slots * (size_t)h->length, sizeof *h->lines, "the magnitudes of operands in steps");
    h->used = memory_zeroed(slots, sizeof *h->used, "the magnitudes of operands in steps");
    h->seen = memory_zeroed(slots, sizeof *h->seen, "the magnitudes of operands in steps");
    TRY(buffer_alloc(h->config.device, PART_DATA, 2 * slots * sizeof(float), &h->device));
    TRY(fill(h->config.compute, (struct fill){.out = vector_of(h, 0), .value = 0.0F}));
    return fill(h->config.compute, (struct fill){.out = vector_of(h, 1), .value = 0.0F});
}

enum status amax_history_create(const struct amax_history_config *config, struct amax_history **out)
{
    *out = NULL;
    if (config->recipe->scaling != SCALE_DELAYED)
        return OK;
    struct amax_history *h = memory_zeroed(1, sizeof *h, "a history of magnitudes");
    h->config = *config;
    h->length = config->recipe->amax_history_len;
    h->slots = (int64_t)config->params->count * OPERAND_COUNT;
    enum status status = fill_history(h);
    if (status == OK)
        *out = h;
    else
        amax_history_destroy(h);
    return status;
}

void amax_history_destroy(struct amax_history *history)
{
    if (history == NULL)
        return;
    buffer_free(&history->device);
    free(history->lines);
    free(history->used);
    free(history->seen);
    free(history);
}

struct delayed_scaling amax_history_scaling(const struct amax_history *history)
{
    if (history == NULL)
        return (struct delayed_scaling){0};
    return (struct delayed_scaling){.used = vector_of(history, 0), .recorded = vector_of(history, 1)};
}

/* ---- the step ---- */

enum status amax_history_reduce(struct amax_history *history)
{
    if (history == NULL)
        return OK;
    struct tensor seen = vector_of(history, 1);
    TRY(group_all_reduce(history->config.groups->world, history->config.compute, seen, REDUCE_MAX));
    TRY(copy_to_host(history->config.compute, history->seen, seen.data, tensor_bytes(seen)));
    return fill(history->config.compute, (struct fill){.out = seen, .value = 0.0F});
}

static float largest_of(const float *line, int64_t count)
{
    float largest = 0.0F;
    for (int64_t i = 0; i < count; i++)
        largest = line[i] > largest ? line[i] : largest;
    return largest;
}

enum status amax_history_upload(struct amax_history *history)
{
    if (history == NULL)
        return OK;
    bool newest = history->config.recipe->amax_compute_algo == AMAX_MOST_RECENT;
    for (int64_t slot = 0; slot < history->slots; slot++) {
        float amax = largest_of(history->lines + slot * history->length, newest ? 1 : history->length);
        float raised = ldexpf(amax, (int)history->config.recipe->margin);
        history->used[slot] = raised < FLT_MAX ? raised : FLT_MAX;
    }
    struct tensor used = vector_of(history, 0);
    TRY(copy_to_device(history->config.compute, used.data, history->used, tensor_bytes(used)));
    return stream_sync(history->config.compute); // the host copy is overwritten next
}

enum status amax_history_update(struct amax_history *history)
{
    if (history == NULL)
        return OK;
    for (int64_t slot = 0; slot < history->slots; slot++) {
        float *line = history->lines + slot * history->length, amax = history->seen[slot];
        bool valid = amax > 0.0F && isfinite(amax);
        float entry = valid ? amax : line[0];
        memmove(line + 1, line, (size_t)(history->length - 1) * sizeof *line);
        line[0] = entry;
    }
    return amax_history_upload(history);
}

/* ---- saving and loading ---- */

const float *amax_history_get(const struct amax_history *history, int row, int64_t *columns)
{
    if (history == NULL)
        return NULL;
    const struct params *params = history->config.params;
    *columns = history->length;
    return has_history(&params->list[row], params->list[params->count - 1].layer)
               ? history->lines + row * OPERAND_COUNT * history->length
               : NULL;
}

void amax_history_set(struct amax_history *history, int row, const float *values, int64_t columns)
{
    for (int64_t operand = 0; operand < OPERAND_COUNT; operand++) {
        float *line = history->lines + (row * OPERAND_COUNT + operand) * history->length;
        for (int64_t age = 0; age < history->length; age++) {
            float value = age < columns ? values[operand * columns + age] : 0.0F;
            line[age] = value > 0.0F && isfinite(value) ? value : 0.0F;
        }
    }
}
