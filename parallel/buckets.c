// SPDX-License-Identifier: Apache-2.0
#include "parallel/buckets.h"

#include <stdlib.h>
#include <string.h>

struct bucket {
    int64_t begin, end; // elements
    int ranges;         // of the parameters in it
    int missing;        // not ready yet in this step
    struct event
        after; // what its all_reduce waits for; one stream's last event covers that stream's earlier ones
};

struct buckets {
    struct group *data, *twins; // twins: or NULL
    struct tensor gradients;
    struct stream *stream;
    bool overlap;
    int range_count, count;
    int started;            // buckets, in this step
    int *bucket_of;         // [range_count]
    bool *ready;            // [range_count]
    struct bucket *buckets; // [count]
};

static enum status check_ranges(struct tensor gradients, const struct bucket_range *ranges, int count)
{
    char text[TENSOR_TEXT_CHARS];
    if (gradients.dtype != F32 || gradients.ndim != 1 || !tensor_is_dense(gradients))
        return fail(BAD_ARGUMENT, "buckets want flat f32 gradients, not %s", tensor_text(gradients, text));
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        if (ranges[i].begin < at || ranges[i].end < ranges[i].begin ||
            ranges[i].end > tensor_count(gradients))
            return fail(BAD_ARGUMENT, "buckets: range %d [%lld, %lld) is out of order, or outside %s", i,
                        (long long)ranges[i].begin, (long long)ranges[i].end, tensor_text(gradients, text));
        at = ranges[i].end;
    }
    return OK;
}

/* Closes a bucket after each range that makes it large enough. */
static void lay_out(struct buckets *b, const struct bucket_range *ranges, int64_t bucket_bytes)
{
    int64_t bytes = 0;
    for (int i = 0; i < b->range_count; i++) {
        if (i == 0 || bytes >= bucket_bytes) {
            b->buckets[b->count++] = (struct bucket){.begin = ranges[i].begin};
            bytes = 0;
        }
        struct bucket *bucket = &b->buckets[b->count - 1];
        bucket->end = ranges[i].end;
        bucket->ranges++;
        bucket->missing++;
        b->bucket_of[i] = b->count - 1;
        bytes += (ranges[i].end - ranges[i].begin) * (int64_t)sizeof(float);
    }
}

enum status buckets_create(struct group *data, struct group *twins, struct device *device,
                           struct tensor gradients, const struct bucket_range *ranges, int count,
                           int64_t bucket_bytes, bool overlap, struct buckets **out)
{
    if (bucket_bytes < 1 || count < 0)
        return fail(BAD_ARGUMENT, "buckets of %lld bytes for %d ranges", (long long)bucket_bytes, count);
    TRY(check_ranges(gradients, ranges, count));
    struct buckets *b = calloc(1, sizeof *b);
    if (b == NULL)
        return fail(NO_MEMORY, "no memory for buckets");
    *b = (struct buckets){
        .data = data, .twins = twins, .gradients = gradients, .overlap = overlap, .range_count = count};
    size_t n = (size_t)count + 1;
    b->bucket_of = calloc(n, sizeof *b->bucket_of);
    b->ready = calloc(n, sizeof *b->ready);
    b->buckets = calloc(n, sizeof *b->buckets);
    enum status status = OK;
    if (b->bucket_of == NULL || b->ready == NULL || b->buckets == NULL)
        status = fail(NO_MEMORY, "no memory for %d gradient ranges", count);
    if (status == OK)
        status = stream_create(device, "buckets", &b->stream);
    if (status == OK) {
        lay_out(b, ranges, bucket_bytes);
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
    free(buckets->bucket_of);
    free(buckets->ready);
    free(buckets->buckets);
    free(buckets);
}

int buckets_count(const struct buckets *buckets)
{
    return buckets->count;
}

/* Starts those that may start: complete, and all before them started. */
static enum status start(struct buckets *b)
{
    for (; b->started < b->count && b->buckets[b->started].missing == 0; b->started++) {
        struct bucket *bucket = &b->buckets[b->started];
        float *begin = (float *)b->gradients.data + bucket->begin;
        struct tensor gradients = tensor_1d(begin, F32, bucket->end - bucket->begin);
        TRY(stream_wait(b->stream, bucket->after));
        TRY(group_all_reduce(b->data, b->stream, gradients, REDUCE_SUM));
        if (b->twins != NULL)
            TRY(group_all_reduce(b->twins, b->stream, gradients, REDUCE_SUM));
    }
    return OK;
}

enum status buckets_ready(struct buckets *b, int first, int count, struct event after)
{
    if (first < 0 || count < 0 || count > b->range_count - first)
        return fail(BAD_ARGUMENT, "buckets: there are %d gradient ranges, not %d and %d more", b->range_count,
                    first, count);
    for (int i = first; i < first + count; i++) {
        if (b->ready[i])
            return fail(BAD_ARGUMENT, "buckets: gradient range %d is ready twice in one step", i);
        b->ready[i] = true;
        struct bucket *bucket = &b->buckets[b->bucket_of[i]];
        if (bucket->after.stream != NULL && bucket->after.stream != after.stream)
            TRY(stream_wait(b->stream, bucket->after));
        bucket->after = after;
        bucket->missing--;
    }
    return b->overlap ? start(b) : OK;
}

enum status buckets_wait(struct buckets *b, struct stream *stream)
{
    for (int i = 0; i < b->range_count; i++)
        if (!b->ready[i])
            return fail(BAD_ARGUMENT, "buckets: gradient range %d was never ready in this step", i);
    TRY(start(b));
    TRY(stream_wait(stream, stream_record(b->stream)));

    memset(b->ready, 0, (size_t)b->range_count * sizeof *b->ready);
    b->started = 0;
    for (int i = 0; i < b->count; i++) {
        b->buckets[i].missing = b->buckets[i].ranges;
        b->buckets[i].after = (struct event){0};
    }
    return OK;
}
