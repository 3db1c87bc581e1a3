// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/moment_window.h"

enum status moment_window_create(struct stream *compute, struct moment_window *out)
{
    *out = (struct moment_window){.compute = compute};
    TRY(stream_create(stream_device(compute), "moments", &out->copies));
    return buffer_alloc(stream_device(compute), PART_MOMENTS, 4 * MOMENT_CHUNK * sizeof(float), &out->buffer);
}

void moment_window_destroy(struct moment_window *window)
{
    stream_destroy(window->copies);
    buffer_free(&window->buffer);
    *window = (struct moment_window){0};
}

enum status moment_window_begin(struct moment_window *window)
{
    return stream_wait(window->copies, stream_record(window->compute));
}

enum status moment_window_end(struct moment_window *window, const struct weights *weights)
{
    buffer_page_out(&weights->m, 0, weights->m.bytes);
    buffer_page_out(&weights->v, 0, weights->v.bytes);
    return stream_wait(window->compute, stream_record(window->copies));
}

/* Elements [begin, begin + count) of the vectors. */
struct shard {
    int64_t begin, count;
    int half;
};

static struct shard shard_at(int64_t elements, int64_t i)
{
    int64_t begin = i * MOMENT_CHUNK, left = elements - begin;
    return (struct shard){
        .begin = begin, .count = left < MOMENT_CHUNK ? left : MOMENT_CHUNK, .half = (int)(i % 2)};
}

static struct tensor part_of(struct tensor vector, struct shard shard)
{
    char *begin = (char *)vector.data + (size_t)shard.begin * dtype_bytes(vector.dtype);
    return tensor_1d(begin, vector.dtype, shard.count);
}

/* Its buffer in the window; moment 0 is m, 1 is v. */
static struct tensor room_of(const struct moment_window *window, struct shard shard, int moment)
{
    float *buffer = window->buffer.data;
    return tensor_1d(buffer + (2 * shard.half + moment) * MOMENT_CHUNK, F32, shard.count);
}

static enum status fetch(struct moment_window *window, const struct adamw *args, struct shard shard)
{
    const struct tensor from[2] = {part_of(args->m, shard), part_of(args->v, shard)};
    for (int moment = 0; moment < 2; moment++)
        TRY(copy_to_device(window->copies, room_of(window, shard, moment).data, from[moment].data,
                           tensor_bytes(from[moment])));
    window->arrived[shard.half] = stream_record(window->copies);
    return OK;
}

static enum status put_back(struct moment_window *window, const struct adamw *args, struct shard shard)
{
    const struct tensor to[2] = {part_of(args->m, shard), part_of(args->v, shard)};
    TRY(stream_wait(window->copies, stream_record(window->compute)));
    for (int moment = 0; moment < 2; moment++)
        TRY(copy_to_host(window->copies, to[moment].data, room_of(window, shard, moment).data,
                         tensor_bytes(to[moment])));
    return OK;
}

enum status moment_window_step(struct moment_window *window, struct adamw args)
{
    int64_t elements = args.m.dim[0], shards = (elements + MOMENT_CHUNK - 1) / MOMENT_CHUNK;
    if (shards > 0)
        TRY(fetch(window, &args, shard_at(elements, 0)));
    for (int64_t i = 0; i < shards; i++) {
        struct shard shard = shard_at(elements, i);
        if (i + 1 < shards)
            TRY(fetch(window, &args, shard_at(elements, i + 1)));
        TRY(stream_wait(window->compute, window->arrived[shard.half]));
        struct adamw step = args;
        step.weight = part_of(args.weight, shard);
        step.gradient = part_of(args.gradient, shard);
        if (args.working.data != NULL)
            step.working = part_of(args.working, shard);
        step.stochastic.first += shard.begin;
        step.m = room_of(window, shard, 0);
        step.v = room_of(window, shard, 1);
        TRY(adamw(window->compute, step));
        TRY(put_back(window, &args, shard));
    }
    return OK;
}
