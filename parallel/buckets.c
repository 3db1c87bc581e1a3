// SPDX-License-Identifier: Apache-2.0
#include "parallel/buckets.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct pending {
    int missing;        // ranges not ready yet in this step
    struct event after; // the reduction waits for it; the last event of a stream covers that stream's earlier
                        // ones
};

struct buckets {
    struct buckets_config config;
    struct stream *stream;
    // [buckets + 1] registrations with the transport: one for each group, at its first bucket; the last one
    // is for the stage replicas
    void **registered;
    int started;             // buckets started in this step
    bool *ready;             // [ranges]
    struct pending *pending; // [buckets]
};

static void begin_step(struct buckets *b)
{
    const struct bucket_plan *plan = b->config.plan;
    memset(b->ready, 0, (size_t)plan->range_count * sizeof *b->ready);
    b->started = 0;
    for (int i = 0; i < plan->count; i++)
        b->pending[i] = (struct pending){.missing = plan->buckets[i].count};
}

static enum status check_config(const struct buckets_config *config)
{
    char text[TENSOR_TEXT_CHARS];
    struct tensor gradients = config->gradients;
    const struct bucket_plan *plan = config->plan;
    tensor_text(gradients, text);
    if (gradients.dtype != F32 || gradients.ndim != 1 || !tensor_is_dense(gradients))
        return fail(BAD_ARGUMENT, "buckets need flat f32 gradients, not %s", text);
    if (plan->count > 0 && plan->buckets[plan->count - 1].end > tensor_count(gradients))
        return fail(BAD_ARGUMENT, "buckets end with element %lld of %s",
                    (long long)plan->buckets[plan->count - 1].end, text);
    for (int b = 0; config->scatter && b < plan->count; b++)
        if (plan->ranks != config->group_of[b]->size)
            return fail(BAD_ARGUMENT, "buckets with slices for %d ranks, and %d data ranks", plan->ranks,
                        config->group_of[b]->size);
    return OK;
}

static bool is_first_of_group(const struct buckets *b, int bucket)
{
    for (int earlier = 0; earlier < bucket; earlier++)
        if (b->config.group_of[earlier] == b->config.group_of[bucket])
            return false;
    return true;
}

static enum status register_gradients(struct buckets *b)
{
    const struct buckets_config *config = &b->config;
    for (int i = 0; i < config->plan->count; i++)
        if (is_first_of_group(b, i))
            TRY(group_register(config->group_of[i], config->gradients, &b->registered[i]));
    if (config->stage_replicas == NULL)
        return OK;
    return group_register(config->stage_replicas, config->gradients, &b->registered[config->plan->count]);
}

static void unregister_gradients(struct buckets *b)
{
    const struct buckets_config *config = &b->config;
    for (int i = 0; b->registered != NULL && i < config->plan->count; i++)
        group_unregister(config->group_of[i], b->registered[i]);
    if (b->registered != NULL)
        group_unregister(config->stage_replicas, b->registered[config->plan->count]);
}

enum status buckets_create(const struct buckets_config *config, struct buckets **out)
{
    TRY(check_config(config));
    struct buckets *b = memory_zeroed(1, sizeof *b, "the buckets of gradients");
    b->config = *config;
    b->ready = memory_zeroed((size_t)config->plan->range_count + 1, sizeof *b->ready, "buckets");
    b->pending = memory_zeroed((size_t)config->plan->count + 1, sizeof *b->pending, "buckets");
    b->registered = memory_zeroed((size_t)config->plan->count + 1, sizeof *b->registered, "buckets");
    enum status status = stream_create(config->device, "buckets", &b->stream);
    // A reduce-scatter into slices of different sizes goes through scratch memory.
    if (status == OK && config->options->nccl_ub && !config->scatter)
        status = register_gradients(b);
    if (status == OK) {
        begin_step(b);
        *out = b;
    } else {
        buckets_destroy(b);
    }
    return status;
}

void buckets_destroy(struct buckets *buckets)
{
    if (buckets == NULL)
        return;
    stream_destroy(buckets->stream);
    unregister_gradients(buckets);
    free(buckets->registered);
    free(buckets->ready);
    free(buckets->pending);
    free(buckets);
}

/* Reduces over the ranks of a bucket's group: the whole bucket, or this rank's slice. *summed: the view that
 * holds the sum. */
static enum status sum_over_group(const struct buckets *b, int index, struct tensor *summed)
{
    const struct bucket *bucket = &b->config.plan->buckets[index];
    struct group *data = b->config.group_of[index];
    float *gradients = b->config.gradients.data;
    struct tensor whole = tensor_1d(gradients + bucket->begin, F32, bucket->end - bucket->begin);
    *summed = whole;
    if (!b->config.scatter)
        return group_all_reduce(data, b->stream, whole, REDUCE_SUM);
    *summed = tensor_1d(gradients + bucket_slice_begin(bucket, data->rank), F32, bucket->counts[data->rank]);
    return group_reduce_scatter_v(data, b->stream, whole, bucket->counts);
}

/* Starts all buckets that are complete and whose predecessors have started. */
static enum status start(struct buckets *b)
{
    const struct bucket_plan *plan = b->config.plan;
    for (; b->started < plan->count && b->pending[b->started].missing == 0; b->started++) {
        struct tensor summed;
        TRY(stream_wait(b->stream, b->pending[b->started].after));
        TRY(sum_over_group(b, b->started, &summed));
        if (b->config.stage_replicas != NULL)
            TRY(group_all_reduce(b->config.stage_replicas, b->stream, summed, REDUCE_SUM));
    }
    return OK;
}

enum status buckets_mark_ready(struct buckets *buckets, int first, int count, struct event after)
{
    const struct bucket_plan *plan = buckets->config.plan;
    if (first < 0 || count < 0 || count > plan->range_count - first)
        return fail(BAD_ARGUMENT, "buckets: there are %d gradient ranges, not %d and %d more",
                    plan->range_count, first, count);
    for (int i = first; i < first + count; i++) {
        if (buckets->ready[i])
            return fail(BAD_ARGUMENT, "buckets: gradient range %d is ready twice in one step", i);
        buckets->ready[i] = true;
        struct pending *pending = &buckets->pending[plan->bucket_of[i]];
        if (pending->after.stream != NULL && pending->after.stream != after.stream)
            TRY(stream_wait(buckets->stream, pending->after));
        pending->after = after;
        pending->missing--;
    }
    return buckets->config.options->overlap_grad_reduce ? start(buckets) : OK;
}

enum status buckets_wait(struct buckets *buckets, struct stream *stream)
{
    CHECK_USE(bucket_plan_check(buckets->config.plan));
    for (int i = 0; i < buckets->config.plan->range_count; i++)
        if (!buckets->ready[i])
            return fail(BAD_ARGUMENT, "buckets: gradient range %d was never ready in this step", i);
    if (!buckets->config.options->overlap_grad_reduce) // not as soon as a bucket's own gradients are ready
        TRY(stream_wait(buckets->stream, stream_record(stream)));
    TRY(start(buckets));
    TRY(stream_wait(stream, stream_record(buckets->stream)));
    begin_step(buckets);
    return OK;
}
