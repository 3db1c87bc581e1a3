// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/weights.h"

#include "base/memory.h"
#include "layers/parameters/gradients.h"
#include "layers/parameters/sharded.h"

#include <stdio.h>
#include <stdlib.h>

enum { ALIGN_ELEMENTS = 16 }; // 64 bytes of f32

static int64_t aligned(int64_t elements)
{
    return (elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

/* Assigns consecutive offsets to the held parameters. The parameters of a fused matrix follow each other
 * without a gap. */
static void assign_offsets(struct weights *w, int64_t *values, int64_t *gradients)
{
    *values = *gradients = 0;
    for (int i = 0; i < w->count; i++) {
        struct held_param *held = &w->list[i];
        bool starts = held->param->fuse == held->index;
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

/* ---- buckets, and the owned part of them ---- */

static int64_t columns_of(const struct held_param *held)
{
    return held->slice.ndim == 1 ? 1 : held->slice.padded[1];
}

/* The reduction group of a parameter follows from its mesh, and is that of its bucket. */
static enum status find_groups(struct weights *w, const struct groups *groups)
{
    if (groups == NULL)
        return OK;
    w->group_of = memory_zeroed((size_t)w->plan.count, sizeof(struct group *), "the groups of buckets");
    for (int b = 0; b < w->plan.count; b++)
        w->group_of[b] = groups_of(groups, w->list[w->plan.buckets[b].first].param->mesh).data;
    return OK;
}

/* A bucket contains parameters of one mesh, and in stage 2 and 3 of one layer. */
static int unit_of(const struct weights *w, const struct param *param)
{
    return (w->zero_stage >= 2 ? MESH_COUNT * param->layer : 0) + (int)param->mesh;
}

static enum status plan_buckets(struct weights *w, const struct weights_config *config)
{
    struct bucket_range *ranges = memory_zeroed((size_t)w->count, sizeof *ranges, "the gradients of a rank");
    for (int i = 0; i < w->count; i++) {
        const struct held_param *held = &w->list[i];
        ranges[i] = (struct bucket_range){
            .begin = held->gradient_offset,
            .end = held->gradient_offset + slice_padded(&held->slice),
            .block = squares_block_rows(columns_of(held)) * columns_of(held),
            .unit = unit_of(w, held->param),
            // Both uses of a tied weight are split identically wherever they are held.
            .alone = w->zero_stage > 0 && held->param->tied,
        };
    }
    int64_t bucket_bytes = (int64_t)(config->options->bucket_size_mb * 1048576.0);
    bool bucket_per_layer = w->zero_stage >= 2 || bucket_bytes == 0;
    int64_t bytes = bucket_per_layer ? INT64_MAX : bucket_bytes;
    int ranks = w->zero_stage > 0 ? config->groups->data->size : 1;
    enum status status = bucket_plan_create(ranges, w->count, bytes, ranks, &w->plan);
    free(ranges);
    return status == OK ? find_groups(w, config->groups) : status;
}

static enum status list_layers(struct weights *w)
{
    w->layers = memory_zeroed((size_t)w->count, sizeof *w->layers, "the table of layers");
    for (int i = 0; i < w->count; i++) {
        const struct held_param *held = &w->list[i];
        int bucket = w->plan.bucket_of[i];
        if (i == 0 || held->param->layer != w->layers[w->layer_count - 1].layer)
            w->layers[w->layer_count++] = (struct held_layer){.layer = held->param->layer,
                                                              .first = i,
                                                              .first_bucket = bucket,
                                                              .begin = held->gradient_offset};
        struct held_layer *layer = &w->layers[w->layer_count - 1];
        layer->count++;
        layer->buckets = bucket - layer->first_bucket + 1;
        layer->elements = aligned(held->gradient_offset + slice_padded(&held->slice) - layer->begin);
    }
    return OK;
}

/* Finds the part of a held parameter in the slice of its bucket that data rank `rank` owns; returns false if
 * there is none. */
static bool own_part(const struct weights *w, int index, int rank, struct owned_param *out)
{
    struct held_param *held = &w->list[index];
    const struct bucket *bucket = &w->plan.buckets[w->plan.bucket_of[index]];
    int64_t columns = columns_of(held), rows = held->slice.padded[0];
    int64_t begin = bucket_slice_begin(bucket, rank) - held->gradient_offset;
    int64_t end = bucket_slice_begin(bucket, rank + 1) - held->gradient_offset;
    begin = begin > 0 ? begin / columns : 0; // slices end between two rows, or outside the parameter
    end = end < rows * columns ? end / columns : rows;
    *out = (struct owned_param){.held = held, .begin = begin, .count = end - begin};
    return begin < end;
}

bool weights_owned_rows(const struct weights *weights, int row, int rank, int64_t *begin, int64_t *count)
{
    struct owned_param owned;
    if (weights->held_of_param[row] < 0 || !own_part(weights, weights->held_of_param[row], rank, &owned))
        return false;
    *begin = owned.begin;
    *count = owned.count;
    return true;
}

static enum status list_owned(struct weights *w)
{
    w->owned = memory_zeroed((size_t)w->count, sizeof *w->owned, "the table of parameters");
    for (int i = 0; i < w->count; i++)
        w->owned_count += own_part(w, i, w->rank, &w->owned[w->owned_count]);
    return OK;
}

/* Offset of a bucket's values. Values and gradients have the same order within a bucket. */
static int64_t values_begin(const struct weights *w, const struct bucket *bucket)
{
    return w->list[bucket->first].value_offset;
}

/* With ZeRO a bucket has values for all of its gradients, or none: a second use has its own bucket. */
static bool has_values(const struct weights *w, const struct bucket *bucket)
{
    return !w->list[bucket->first].second_use;
}

/* Adds up the slices, which are consecutive. */
static void list_slices(struct weights *w)
{
    for (int gradients = 0; gradients < 2; gradients++) {
        int64_t *before = memory_zeroed((size_t)w->plan.count + 1, sizeof *before, "buckets");
        w->slices_before[gradients] = before;
        for (int b = 0; b < w->plan.count; b++) {
            const bool has_slice = gradients || has_values(w, &w->plan.buckets[b]);
            before[b + 1] = before[b] + (has_slice ? aligned(w->plan.buckets[b].counts[w->rank]) : 0);
        }
    }
}

/* Elements before the slice of `bucket`. */
static int64_t slices_before(const struct weights *w, int bucket, bool gradients)
{
    return w->slices_before[gradients][bucket];
}

/* ---- memory ---- */

static size_t bytes_of(int64_t elements)
{
    return (size_t)elements * sizeof(float);
}

/* Returns true if the optimizer updates fp32 master weights separate from the layers' weights. */
static bool has_masters(const struct weights *w)
{
    return w->zero_stage < 3 && w->working != w->main;
}

/* Type of w->value: of whole parameters, or of their slices. */
static enum dtype kept_dtype(const struct weights *w)
{
    return w->zero_stage >= 3 ? w->main : w->working;
}

static enum status allocate(struct weights *w, int64_t values, int64_t gradients,
                            const struct weights_config *config)
{
    int64_t owned = w->zero_stage > 0 ? slices_before(w, w->plan.count, false) : values;
    int64_t kept = w->zero_stage >= 2 ? slices_before(w, w->plan.count, true) : gradients;
    int64_t held = w->zero_stage >= 3 ? owned : values;
    enum part values_part = kept_dtype(w) == w->working ? PART_WEIGHTS : PART_MASTERS;
    TRY(buffer_alloc(w->device, values_part, (size_t)held * dtype_bytes(kept_dtype(w)), &w->value));
    if (!config->training)
        return OK;
    TRY(buffer_alloc(w->device, PART_GRADIENTS, bytes_of(kept), &w->gradient));
    enum part moments = config->offload_moments ? PART_HOST : PART_MOMENTS;
    TRY(buffer_alloc(w->device, moments, bytes_of(owned), &w->m));
    TRY(buffer_alloc(w->device, moments, bytes_of(owned), &w->v));
    if (has_masters(w))
        TRY(buffer_alloc(w->device, PART_MASTERS, bytes_of(owned), &w->master));
    w->flat_gradient = tensor_1d(w->gradient.data, F32, kept);
    return OK;
}

/* View of rows of a held parameter, the first at element `offset` of a buffer. */
static struct tensor view_as(enum dtype dtype, const struct held_param *held, const struct buffer *buffer,
                             int64_t offset, int64_t rows)
{
    void *data = buffer->data != NULL ? (char *)buffer->data + (size_t)offset * dtype_bytes(dtype) : NULL;
    return held->slice.ndim == 1 ? tensor_1d(data, dtype, rows)
                                 : tensor_2d(data, dtype, rows, held->slice.padded[1]);
}

static struct tensor view(const struct held_param *held, const struct buffer *buffer, int64_t offset,
                          int64_t rows)
{
    return view_as(F32, held, buffer, offset, rows);
}

/* Views of sharded tensors are NULL until they are gathered. */
static void point_held(struct weights *w, bool training)
{
    const struct buffer nowhere = {0};
    for (int i = 0; i < w->count; i++) {
        struct held_param *held = &w->list[i];
        int64_t rows = held->slice.padded[0];
        if (held->second_use)
            held->value_offset = w->list[w->held_of_param[held->param->tie]].value_offset;
        held->weight =
            view_as(w->working, held, w->zero_stage >= 3 ? &nowhere : &w->value, held->value_offset, rows);
        if (training)
            held->gradient =
                view(held, w->zero_stage >= 2 ? &nowhere : &w->gradient, held->gradient_offset, rows);
    }
}

/* Offset of element `element` of a held parameter in the slices. */
static int64_t slice_offset(const struct weights *w, int index, int64_t element, bool gradients)
{
    int b = w->plan.bucket_of[index];
    int64_t in_slice =
        w->list[index].gradient_offset + element - bucket_slice_begin(&w->plan.buckets[b], w->rank);
    return slices_before(w, b, gradients) + in_slice;
}

static void point_owned(struct weights *w, bool training)
{
    for (int i = 0; i < w->owned_count; i++) {
        struct owned_param *owned = &w->owned[i];
        struct held_param *held = owned->held;
        int index = (int)(held - w->list);
        int64_t before = owned->begin * columns_of(held);
        int64_t gradient = held->gradient_offset + before, value = held->value_offset + before;
        int64_t moment = w->zero_stage > 0 ? slice_offset(w, index, before, false) : value;
        if (w->zero_stage >= 2)
            gradient = slice_offset(w, index, before, true);
        if (w->zero_stage >= 3)
            value = moment;
        if (training)
            owned->gradient = view(held, &w->gradient, gradient, owned->count);
        if (held->second_use)
            continue;
        struct tensor part = view_as(kept_dtype(w), held, &w->value, value, owned->count);
        *(has_masters(w) ? &owned->working : &owned->value) = part;
        if (!training)
            continue;
        if (has_masters(w))
            owned->value = view(held, &w->master, moment, owned->count);
        owned->m = view(held, &w->m, moment, owned->count);
        owned->v = view(held, &w->v, moment, owned->count);
    }
}

struct tensor weights_gradient_slice(const struct weights *weights, int bucket)
{
    return tensor_1d((float *)weights->gradient.data + slices_before(weights, bucket, true), F32,
                     weights->plan.buckets[bucket].counts[weights->rank]);
}

struct tensor weights_value_slice(const struct weights *weights, int bucket)
{
    const struct held_param *first = &weights->list[weights->plan.buckets[bucket].first];
    int source =
        first->second_use ? weights->plan.bucket_of[weights->held_of_param[first->param->tie]] : bucket;
    char *begin = (char *)weights->value.data +
                  (size_t)slices_before(weights, source, false) * dtype_bytes(weights->main);
    return tensor_1d(begin, weights->main, weights->plan.buckets[source].counts[weights->rank]);
}

/* ---- creation ---- */

static enum status list_held(struct weights *w, const struct weights_config *config)
{
    const struct params *params = w->params;
    w->list = memory_zeroed((size_t)params->count, sizeof *w->list, "the table of parameters");
    w->held_of_param =
        memory_zeroed((size_t)params->count, sizeof *w->held_of_param, "the table of parameters");
    for (int i = 0; i < params->count; i++)
        w->held_of_param[i] = -1;

    for (int l = 0; l < config->layer_count; l++) {
        int first, count = params_of_layer(params, config->layers[l], &first);
        for (int i = first; i < first + count; i++) {
            const struct param *param = &params->list[i];
            w->held_of_param[i] = w->count;
            w->list[w->count++] = (struct held_param){
                .param = param,
                .index = i,
                .slice = shard_slice(param->ndim, param->dim, param->shardings, param->sharding_count,
                                     config->coord),
            };
        }
    }
    for (int i = 0; i < w->count; i++) {
        int tie = w->list[i].param->tie;
        w->list[i].second_use = tie >= 0 && w->held_of_param[tie] >= 0;
    }
    return OK;
}

static enum status create(const struct weights_config *config, struct weights *out)
{
    CHECK_USE(params_check(config->params));
    bool training = config->training;
    int stage = training ? config->options->zero_stage : 0;
    *out = (struct weights){
        .params = config->params,
        .device = config->device,
        .working = config->working,
        .main = config->main,
        .zero_stage = stage,
        .rank = stage > 0 ? config->groups->data->rank : 0,
    };
    int64_t values, gradients;
    TRY(list_held(out, config));
    assign_offsets(out, &values, &gradients);
    TRY(plan_buckets(out, config));
    TRY(list_layers(out));
    list_slices(out);
    TRY(allocate(out, values, gradients, config));
    TRY(list_owned(out));
    point_held(out, training);
    point_owned(out, training);
    TRY(training ? gradients_create(out, config) : OK);
    return stage >= 3 ? sharded_create(out, config) : OK;
}

enum status weights_create(const struct weights_config *config, struct weights *out)
{
    static const struct data_parallel_options none = {.zero_stage = 0};
    struct weights_config with_options = *config;
    if (config->options == NULL)
        with_options.options = &none;
    return create(&with_options, out);
}

void weights_destroy(struct weights *weights)
{
    sharded_destroy(weights->sharded);
    gradients_destroy(weights->gradients);
    buffer_free(&weights->value);
    buffer_free(&weights->gradient);
    buffer_free(&weights->m);
    buffer_free(&weights->v);
    buffer_free(&weights->master);
    bucket_plan_destroy(&weights->plan);
    free(weights->list);
    free(weights->held_of_param);
    free(weights->layers);
    free(weights->group_of);
    free(weights->owned);
    free(weights->slices_before[0]);
    free(weights->slices_before[1]);
    *weights = (struct weights){0};
}

static struct tensor whole(const struct buffer *buffer)
{
    return tensor_1d(buffer->data, F32, (int64_t)(buffer->bytes / sizeof(float)));
}

/* A copy of a tied weight uses the random numbers of the original. */
static const char *original_name(const struct weights *w, const struct param *param)
{
    return param->tie >= 0 ? w->params->list[param->tie].name : param->name;
}

/* Initializes part of a held parameter, or all of it. */
static enum status initialize_part(const struct weights *w, const struct held_param *held, struct slice slice,
                                   struct tensor value, struct stream *stream, uint64_t seed)
{
    const struct param *param = held->param;
    if (param->init == INIT_ZERO || slice_count(&slice) == 0)
        return OK;
    if (param->init == INIT_ONE)
        return fill(stream, (struct fill){.out = value, .value = 1.0F});

    const char *name = original_name(w, param);
    struct tensor matrix = tensor_2d(value.data, value.dtype, slice.padded[0], slice.padded[1]);
    return init_normal(stream, (struct init_normal){
                                   .out = tensor_rows(matrix, 0, slice.count[0]),
                                   .generator = philox_named(seed, name),
                                   .std = param->std,
                                   .row_begin = slice.begin[0],
                                   .column_begin = slice.begin[1],
                                   .columns = param->dim[1],
                               });
}

/* Initializes the layers' weights and the master weights. */
static enum status initialize_values(struct weights *w, struct stream *stream, uint64_t seed)
{
    for (int i = 0; i < w->count && w->zero_stage < 3; i++)
        if (!w->list[i].second_use)
            TRY(initialize_part(w, &w->list[i], w->list[i].slice, w->list[i].weight, stream, seed));
    for (int i = 0; i < w->owned_count; i++) {
        const struct owned_param *owned = &w->owned[i];
        bool apart = w->zero_stage >= 3 || has_masters(w);
        if (apart && owned->value.data != NULL)
            TRY(initialize_part(w, owned->held, owned_slice(owned), owned->value, stream, seed));
    }
    return OK;
}

enum status weights_initialize(struct weights *weights, struct stream *stream, uint64_t seed)
{
    // Padding, gaps and moments start at zero and stay zero, because their gradients are zero. Host memory is
    // allocated zeroed.
    struct buffer *all[] = {&weights->value, &weights->m, &weights->v, &weights->master};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->bytes > 0 && all[i]->part != PART_HOST)
            TRY(fill(stream, (struct fill){.out = whole(all[i]), .value = 0.0F}));
    TRY(initialize_values(weights, stream, seed));
    weights->updated = stream_record(stream);
    return OK;
}

/* Copies rows [begin, begin + count) to the device as fp32 and rounds them there. */
static enum status set_rows(struct weights *w, struct stream *stream, const struct held_param *held,
                            const float *host, const struct buffer *staging, int64_t begin, int64_t count)
{
    int64_t columns = columns_of(held), elements = count * columns;
    struct tensor wide = tensor_1d(staging->data, F32, elements);
    const struct owned_param *owned = weights_owned(w, held->index);
    struct tensor to = view_as(w->working, held, &w->value, held->value_offset + begin * columns, count);
    TRY(copy_to_device(stream, wide.data, host + begin * columns, tensor_bytes(wide)));
    TRY(cast(stream, (struct cast){.in = wide, .out = tensor_1d(to.data, to.dtype, elements)}));
    int64_t first = begin, last = begin + count;
    if (!has_masters(w) || owned == NULL || owned->value.data == NULL)
        return OK;
    first = first > owned->begin ? first : owned->begin;
    last = last < owned->begin + owned->count ? last : owned->begin + owned->count;
    if (first >= last)
        return OK;
    float *master = (float *)owned->value.data + (first - owned->begin) * columns;
    float *from = (float *)wide.data + (first - begin) * columns;
    return copy(stream, (struct copy){.in = tensor_1d(from, F32, (last - first) * columns),
                                      .out = tensor_1d(master, F32, (last - first) * columns)});
}

enum status weights_set(struct weights *weights, struct stream *stream, const struct held_param *held,
                        const float *host)
{
    enum { STAGING_ELEMENTS = 1 << 20 };
    int64_t rows = held->slice.padded[0], columns = columns_of(held);
    CHECK(weights->zero_stage < 3);
    CHECK_USE(slice_check(&held->slice, held->param->dim));
    if (weights->working == F32) {
        TRY(copy_to_device(stream, held->weight.data, host, tensor_bytes(held->weight)));
        return stream_sync(stream);
    }
    struct buffer staging = {0};
    int64_t each = columns < STAGING_ELEMENTS ? STAGING_ELEMENTS / columns : 1;
    each = each < rows ? each : rows;
    enum status status =
        buffer_alloc(weights->device, PART_WORKSPACE, (size_t)(each * columns) * sizeof(float), &staging);
    for (int64_t begin = 0; status == OK && begin < rows; begin += each)
        status =
            set_rows(weights, stream, held, host, &staging, begin, begin + each < rows ? each : rows - begin);
    if (status == OK)
        status = stream_sync(stream);
    buffer_free(&staging);
    weights->updated = stream_record(stream);
    return status;
}

enum status weights_gather(struct weights *weights, struct stream *stream)
{
    bool whole_values = weights->zero_stage == 1 || weights->zero_stage == 2;
    for (int b = 0; b < weights->plan.count && whole_values; b++) {
        const struct bucket *bucket = &weights->plan.buckets[b];
        char *begin = (char *)weights->value.data +
                      (size_t)values_begin(weights, bucket) * dtype_bytes(weights->working);
        struct tensor values = tensor_1d(begin, weights->working, bucket->end - bucket->begin);
        if (has_values(weights, bucket))
            TRY(group_all_gather_v(weights->group_of[b], stream, values, bucket->counts));
    }
    weights->updated = stream_record(stream);
    return OK;
}

const struct held_layer *weights_layer(const struct weights *weights, int layer)
{
    // With one chunk they are listed from the last to the first.
    const int guess = weights->layer_count > 0 ? weights->layers[0].layer - layer : -1;
    if (guess >= 0 && guess < weights->layer_count && weights->layers[guess].layer == layer)
        return &weights->layers[guess];
    for (int i = 0; i < weights->layer_count; i++)
        if (weights->layers[i].layer == layer)
            return &weights->layers[i];
    return NULL;
}

struct owned_param *weights_owned(const struct weights *weights, int param)
{
    for (int i = 0; i < weights->owned_count; i++)
        if (weights->owned[i].held->index == param)
            return &weights->owned[i];
    return NULL;
}

struct slice owned_slice(const struct owned_param *owned)
{
    struct slice slice = owned->held->slice;
    int64_t real = slice.count[0] - owned->begin; // the remaining rows are padding
    slice.begin[0] += owned->begin;
    slice.padded[0] = owned->count;
    slice.count[0] = real < 0 ? 0 : real < owned->count ? real : owned->count;
    return slice;
}

struct philox stochastic_named(uint64_t seed, const char *param_name)
{
    char name[PARAM_NAME_CHARS + 16];
    snprintf(name, sizeof name, "%s.rounding", param_name);
    return philox_named(seed, name);
}

struct stochastic owned_stochastic(const struct weights *weights, const struct owned_param *owned,
                                   uint64_t seed)
{
    const struct param *param = owned->held->param;
    const struct slice slice = owned_slice(owned);
    return (struct stochastic){
        .generator = stochastic_named(seed, original_name(weights, param)),
        .begin = slice.begin[0] * param->dim[1] + slice.begin[1],
        .width = columns_of(owned->held),
        .columns = param->dim[1],
    };
}

struct held_param *weights_held(const struct weights *weights, int param)
{
    return param >= 0 && weights->held_of_param[param] >= 0 ? &weights->list[weights->held_of_param[param]]
                                                            : NULL;
}

/* View from the first to the last of the fused parameters: they are adjacent. */
static struct tensor fused(const struct weights *weights, int first, bool gradient)
{
    const struct held_param *held = weights_held(weights, first);
    CHECK(held != NULL);
    struct tensor view = gradient ? held->gradient : held->weight;
    for (int i = first + 1; i < weights->params->count && weights->params->list[i].fuse == first; i++)
        view.dim[0] += weights_held(weights, i)->slice.padded[0];
    return view;
}

struct tensor weights_fused_value(const struct weights *weights, int first)
{
    return fused(weights, first, false);
}

struct tensor weights_fused_gradient(const struct weights *weights, int first)
{
    return fused(weights, first, true);
}
