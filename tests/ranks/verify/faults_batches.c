// SPDX-License-Identifier: Apache-2.0
/* Injected faults in the data a rank reads: samples, labels, masks, documents. */
#include "tests/ranks/verify/faults.h"

#include <string.h>

// A function of a step observer has its signature, whether or not a fault uses the step.
#pragma GCC diagnostic ignored "-Wunused-parameter"

static int64_t tokens_of(const struct rank_state *w)
{
    return w->batches.rows * w->batches.seq_length;
}

/* The arrays of a microbatch, writable. */
static int32_t *ids(const int32_t *array)
{
    return (int32_t *)(uintptr_t)array;
}

static float *masks(const struct batch *batch)
{
    return (float *)(uintptr_t)batch->loss_mask;
}

enum status dropout_by_slot(void *context, struct rank_state *w, int64_t step)
{
    TRY(stream_sync(w->compute));
    for (int j = 0; j < w->batches.count; j++) {
        int64_t *sample = (int64_t *)(uintptr_t)w->batches.list[j].sample;
        for (int64_t t = 0; t < tokens_of(w); t++)
            sample[t] = j * w->batches.rows + t / w->batches.seq_length;
    }
    return OK;
}

/* Each microbatch's loss divided by its own number of tokens. */
enum status mean_of_means(void *context, struct rank_state *w, int64_t step)
{
    TRY(stream_sync(w->compute));
    for (int j = 0; j < w->batches.count; j++) {
        float *mask = masks(&w->batches.list[j]), sum = 0.0F;
        for (int64_t t = 0; t < tokens_of(w); t++)
            sum += mask[t];
        for (int64_t t = 0; t < tokens_of(w); t++)
            mask[t] *= (float)tokens_of(w) / sum;
    }
    return OK;
}

static enum status read_again(struct rank_state *w, int dp_rank, int64_t step)
{
    const struct recipe *recipe = w->run->recipe;
    struct batch_coord place = {
        .step = (uint64_t)step - 1,
        .global_batch_size = recipe->train.global_batch_size,
        .micro_batch_size = recipe->train.micro_batch_size,
        .dp_size = w->mesh.degrees.dp,
        .dp_rank = dp_rank,
        .offset = w->sample_offset,
    };
    return batches_load(&w->batches, w->compute, w->run->data, DATA_TRAIN, &place,
                        recipe->data.reset_attention_mask);
}

/* Two tp ranks swap their data coordinates. */
enum status data_swapped(void *context, struct rank_state *w, int64_t step)
{
    const struct mesh_coord coord = w->groups->coord;
    return coord.tp == 1 ? read_again(w, w->mesh.degrees.dp - 1 - coord.dp, step) : OK;
}

/* The groups follow one rank order, the data another. */
enum status order_swapped(void *context, struct rank_state *w, int64_t step)
{
    struct mesh other;
    TRY(mesh_create(w->mesh.degrees, "dp-tp-cp-ep-pp", &other));
    return read_again(w, mesh_coord(&other, MESH_DENSE, w->world->rank).dp, step);
}

/* One microbatch is used twice, its neighbor never. */
enum status microbatch_used_twice(void *context, struct rank_state *w, int64_t step)
{
    if (w->groups->coord.dp == 0)
        return OK;
    TRY(stream_sync(w->compute));
    char *images = w->batches.device.data;
    memcpy(images + w->batches.batch_bytes, images, w->batches.batch_bytes);
    return OK;
}

/* The head's ranks compare the second microbatch with the first one's labels, and vice versa. */
enum status labels_of_another(void *context, struct rank_state *w, int64_t step)
{
    struct batch *list = w->batches.list;
    const int32_t *label = list[0].label;
    list[0].label = list[1].label;
    list[1].label = label;
    return OK;
}

enum status labels_shifted(void *context, struct rank_state *w, int64_t step)
{
    if (w->groups->coord.tp != 1)
        return OK;
    TRY(stream_sync(w->compute));
    for (int j = 0; j < w->batches.count; j++) {
        int32_t *label = ids(w->batches.list[j].label);
        memmove(label, label + 1, (size_t)(tokens_of(w) - 1) * sizeof *label);
    }
    return OK;
}

enum status documents_ignored(void *context, struct rank_state *w, int64_t step)
{
    for (int j = 0; j < w->batches.count; j++)
        w->batches.list[j].document = NULL;
    return OK;
}

enum status positions_not_reset(void *context, struct rank_state *w, int64_t step)
{
    TRY(stream_sync(w->compute));
    for (int j = 0; j < w->batches.count; j++)
        for (int64_t t = 0; t < tokens_of(w); t++)
            ids(w->batches.list[j].position)[t] = (int32_t)(t % w->batches.seq_length);
    return OK;
}

enum status mask_ignored(void *context, struct rank_state *w, int64_t step)
{
    if (w->groups->coord.dp == 0)
        return OK;
    TRY(stream_sync(w->compute));
    for (int j = 0; j < w->batches.count; j++)
        for (int64_t t = 0; t < tokens_of(w); t++)
            masks(&w->batches.list[j])[t] = 1.0F;
    return OK;
}

/* One data rank applies the mask to the inputs instead of the labels: by one token. */
enum status mask_shifted(void *context, struct rank_state *w, int64_t step)
{
    if (w->groups->coord.dp == 0)
        return OK;
    TRY(stream_sync(w->compute));
    for (int j = 0; j < w->batches.count; j++) {
        float *mask = masks(&w->batches.list[j]);
        memmove(mask + 1, mask, (size_t)(tokens_of(w) - 1) * sizeof *mask);
    }
    return OK;
}

/* All data ranks read the samples of the first. */
enum status data_of_first(void *context, struct rank_state *w, int64_t step)
{
    return w->groups->coord.dp > 0 ? read_again(w, 0, step) : OK;
}
