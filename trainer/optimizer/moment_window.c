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
struct chunk {
    int64_t begin, count;
    int half;
};

static struct chunk chunk_at(int64_t elements, int64_t i)
{
    int64_t begin = i * MOMENT_CHUNK, left = elements - begin;
    return (struct chunk){
        .begin = begin, .count = left < MOMENT_CHUNK ? left : MOMENT_CHUNK, .half = (int)(i % 2)};
}

static struct tensor part_of(struct tensor vector, struct chunk chunk)
{
    char *begin = (char *)vector.data + (size_t)chunk.begin * dtype_bytes(vector.dtype);
    return tensor_1d(begin, vector.dtype, chunk.count);
}

/* The chunk's buffer in the window; moment 0 is m, 1 is v. */
static struct tensor window_of(const struct moment_window *window, struct chunk chunk, int moment)
{
    float *buffer = window->buffer.data;
    return tensor_1d(buffer + (2 * chunk.half + moment) * MOMENT_CHUNK, F32, chunk.count);
}

static enum status fetch(struct moment_window *window, const struct adamw *args, struct chunk chunk)
{
    const struct tensor from[2] = {part_of(args->m, chunk), part_of(args->v, chunk)};
    for (int moment = 0; moment < 2; moment++)
        TRY(copy_to_device(window->copies, window_of(window, chunk, moment).data, from[moment].data,
                           tensor_bytes(from[moment])));
    window->arrived[chunk.half] = stream_record(window->copies);
    return OK;
}

static enum status write_back(struct moment_window *window, const struct adamw *args, struct chunk chunk)
{
    const struct tensor to[2] = {part_of(args->m, chunk), part_of(args->v, chunk)};
    TRY(stream_wait(window->copies, stream_record(window->compute)));
    for (int moment = 0; moment < 2; moment++)
        TRY(copy_to_host(window->copies, to[moment].data, window_of(window, chunk, moment).data,
                         tensor_bytes(to[moment])));
    return OK;
}

enum status moment_window_step(struct moment_window *window, struct adamw args)
{
    int64_t elements = args.m.dim[0], shards = (elements + MOMENT_CHUNK - 1) / MOMENT_CHUNK;
    if (shards > 0)
        TRY(fetch(window, &args, chunk_at(elements, 0)));
    for (int64_t i = 0; i < shards; i++) {
        struct chunk chunk = chunk_at(elements, i);
        if (i + 1 < shards)
            TRY(fetch(window, &args, chunk_at(elements, i + 1)));
        TRY(stream_wait(window->compute, window->arrived[chunk.half]));
        struct adamw step = args;
        step.weight = part_of(args.weight, chunk);
        step.gradient = part_of(args.gradient, chunk);
        if (args.working.data != NULL)
            step.working = part_of(args.working, chunk);
        step.stochastic.first += chunk.begin;
        step.m = window_of(window, chunk, 0);
        step.v = window_of(window, chunk, 1);
        TRY(adamw(window->compute, step));
        TRY(write_back(window, &args, chunk));
    }
    return OK;
}
