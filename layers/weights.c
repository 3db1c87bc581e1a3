// SPDX-License-Identifier: Apache-2.0
#include "layers/weights.h"

#include <stdlib.h>

enum { ALIGN_ELEMENTS = 16 }; // 64 bytes of f32

static int64_t aligned(int64_t elements)
{
    return (elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

static struct tensor local_view(const struct held *held, const struct buffer *buffer, int64_t offset)
{
    float *data = (float *)buffer->data + offset;
    const struct slice *slice = &held->slice;
    return slice->ndim == 1 ? tensor_1d(data, F32, slice->padded[0])
                            : tensor_2d(data, F32, slice->padded[0], slice->padded[1]);
}

/* Lays the held rows out one after the other. A matrix that others are fused to is followed by them
 * without a gap. */
static void assign_offsets(struct weights *w, int64_t *values, int64_t *gradients)
{
    *values = *gradients = 0;
    for (int i = 0; i < w->count; i++) {
        struct held *held = &w->list[i];
        bool starts = held->row->fuse == held->index;
        int64_t count = slice_padded(&held->slice);
        if (starts)
            *gradients = aligned(*gradients);
        held->gradient_offset = *gradients;
        *gradients += count;
        if (held->second_use)
            continue;
        if (starts)
            *values = aligned(*values);
        held->value_offset = *values;
        *values += count;
    }
    *values = aligned(*values);
    *gradients = aligned(*gradients);
}

static enum status allocate(struct weights *w, bool training)
{
    int64_t values, gradients;
    assign_offsets(w, &values, &gradients);
    size_t value_bytes = (size_t)values * sizeof(float), gradient_bytes = (size_t)gradients * sizeof(float);
    TRY(buffer_alloc(w->device, PART_WEIGHTS, value_bytes, &w->value));
    if (!training)
        return OK;
    TRY(buffer_alloc(w->device, PART_GRADIENTS, gradient_bytes, &w->gradient));
    TRY(buffer_alloc(w->device, PART_OPTIMIZER, value_bytes, &w->m));
    TRY(buffer_alloc(w->device, PART_OPTIMIZER, value_bytes, &w->v));
    w->flat_gradient = tensor_1d(w->gradient.data, F32, gradients);
    return OK;
}

static void point_views(struct weights *w, bool training)
{
    for (int i = 0; i < w->count; i++) {
        struct held *held = &w->list[i];
        if (held->second_use)
            held->value_offset = w->list[w->held_of_row[held->row->tie]].value_offset;
        held->weight = local_view(held, &w->value, held->value_offset);
        if (!training)
            continue;
        held->gradient = local_view(held, &w->gradient, held->gradient_offset);
        if (!held->second_use) {
            held->m = local_view(held, &w->m, held->value_offset);
            held->v = local_view(held, &w->v, held->value_offset);
        }
    }
}

enum status weights_create(struct device *device, const struct params *params, struct place place,
                           const int *layers, int layer_count, bool training, struct weights *out)
{
    *out = (struct weights){.params = params, .device = device};
    out->list = calloc((size_t)params->count, sizeof *out->list);
    out->held_of_row = malloc((size_t)params->count * sizeof *out->held_of_row);
    if (out->list == NULL || out->held_of_row == NULL)
        return fail(NO_MEMORY, "no memory for the table of %d parameters", params->count);
    for (int i = 0; i < params->count; i++)
        out->held_of_row[i] = -1;

    for (int l = 0; l < layer_count; l++) {
        int first, count = params_of_layer(params, layers[l], &first);
        for (int i = first; i < first + count; i++) {
            const struct param *row = &params->rows[i];
            out->held_of_row[i] = out->count;
            out->list[out->count++] = (struct held){
                .row = row,
                .index = i,
                .slice = shard_slice(row->ndim, row->dim, row->cuts, row->cut_count, place),
            };
        }
    }
    for (int i = 0; i < out->count; i++) {
        int tie = out->list[i].row->tie;
        out->list[i].second_use = tie >= 0 && out->held_of_row[tie] >= 0;
    }
    TRY(allocate(out, training));
    point_views(out, training);
    return OK;
}

void weights_destroy(struct weights *weights)
{
    buffer_free(&weights->value);
    buffer_free(&weights->gradient);
    buffer_free(&weights->m);
    buffer_free(&weights->v);
    free(weights->list);
    free(weights->held_of_row);
    *weights = (struct weights){0};
}

static struct tensor whole(const struct buffer *buffer)
{
    return tensor_1d(buffer->data, F32, (int64_t)(buffer->bytes / sizeof(float)));
}

static enum status initialise_one(struct held *held, const struct params *params, struct stream *stream,
                                  uint64_t seed)
{
    const struct param *row = held->row;
    const struct slice *slice = &held->slice;
    if (row->init == INIT_ZERO)
        return OK;
    if (row->init == INIT_ONE)
        return fill(stream, (struct fill){.out = held->weight, .value = 1.0F});

    // The copy of a tied weight draws what its original draws.
    const char *name = row->tie >= 0 ? params->rows[row->tie].name : row->name;
    struct tensor matrix = tensor_2d(held->weight.data, F32, slice->padded[0], slice->padded[1]);
    return init_normal(stream, (struct init_normal){
                                   .out = tensor_rows(matrix, 0, slice->count[0]),
                                   .generator = philox_named(seed, name),
                                   .std = row->std,
                                   .row_begin = slice->begin[0],
                                   .column_begin = slice->begin[1],
                                   .columns = row->dim[1],
                               });
}

enum status weights_initialise(struct weights *weights, struct stream *stream, uint64_t seed)
{
    // Padding, gaps and moments are zero, and stay zero: their gradients are.
    struct buffer *all[] = {&weights->value, &weights->m, &weights->v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->bytes > 0)
            TRY(fill(stream, (struct fill){.out = whole(all[i]), .value = 0.0F}));
    for (int i = 0; i < weights->count; i++)
        if (!weights->list[i].second_use)
            TRY(initialise_one(&weights->list[i], weights->params, stream, seed));
    return OK;
}

enum status weights_zero_gradients(struct weights *weights, struct stream *stream)
{
    return fill(stream, (struct fill){.out = weights->flat_gradient, .value = 0.0F});
}

struct held *weights_held(const struct weights *weights, int row)
{
    return row >= 0 && weights->held_of_row[row] >= 0 ? &weights->list[weights->held_of_row[row]] : NULL;
}

/* From the first of the fused rows to the last: they lie without a gap. */
static struct tensor fused(const struct weights *weights, int first_row, bool gradient)
{
    const struct held *first = weights_held(weights, first_row);
    CHECK(first != NULL);
    struct tensor view = gradient ? first->gradient : first->weight;
    for (int i = first_row + 1; i < weights->params->count && weights->params->rows[i].fuse == first_row; i++)
        view.dim[0] += weights_held(weights, i)->slice.padded[0];
    return view;
}

struct tensor weights_fused_value(const struct weights *weights, int first_row)
{
    return fused(weights, first_row, false);
}

struct tensor weights_fused_gradient(const struct weights *weights, int first_row)
{
    return fused(weights, first_row, true);
}
