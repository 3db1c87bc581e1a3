// SPDX-License-Identifier: Apache-2.0
#include "tools/benchmarks/bench_buffers.h"

#include <string.h>

static struct bench_buffer *take(struct bench_memory *m, size_t bytes)
{
    CHECK(m->buffers < BENCH_BUFFERS && bytes > 0);
    struct bench_buffer *b = &m->buffer[m->buffers++];
    b->bytes = (bytes + 255) / 256 * 256;
    b->copies = (double)bytes < BENCH_ROTATED_MIN ? 1 : (int)((m->rotate_bytes + b->bytes - 1) / b->bytes);
    b->copies = b->copies > 1 ? b->copies : 1;
    MUST(buffer_alloc(m->device, PART_WORKSPACE, b->bytes * (size_t)b->copies, &b->memory));
    return b;
}

static void *copy_of(const struct bench_buffer *b, int i)
{
    return (char *)b->memory.data + (size_t)i * b->bytes;
}

void *bench_alloc(struct bench_memory *m, size_t bytes)
{
    return take(m, bytes)->memory.data;
}

void *bench_filled(struct bench_memory *m, const void *from, size_t bytes)
{
    const struct bench_buffer *b = take(m, bytes);
    for (int i = 0; i < b->copies; i++)
        MUST(copy_to_device(m->stream, copy_of(b, i), from, bytes));
    MUST(stream_sync(m->stream));
    return b->memory.data;
}

struct tensor bench_normals(struct bench_memory *m, enum dtype dtype, int64_t rows, int64_t columns)
{
    const struct bench_buffer *b = take(m, (size_t)(rows * columns) * dtype_bytes(dtype));
    for (int i = 0; i < b->copies; i++) {
        const struct init_normal normal = {.out = tensor_2d(copy_of(b, i), dtype, rows, columns),
                                           .generator = philox_named(m->fills++, "bench"),
                                           .std = 1.0F,
                                           .columns = columns};
        MUST(init_normal(m->stream, normal));
    }
    MUST(stream_sync(m->stream));
    return tensor_2d(b->memory.data, dtype, rows, columns);
}

static uint64_t next_copy(const struct bench_memory *m, uint64_t word)
{
    for (int i = 0; i < m->buffers; i++) {
        const struct bench_buffer *b = &m->buffer[i];
        const uint64_t offset = word - (uint64_t)(uintptr_t)b->memory.data,
                       all = (uint64_t)b->bytes * (uint64_t)b->copies;
        if (offset < all)
            return word - offset + (offset + b->bytes) % all;
    }
    return word;
}

void bench_rotate(const struct bench_memory *m, void *args, size_t bytes)
{
    CHECK(bytes % sizeof(uint64_t) == 0);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (char *)args + i, sizeof word);
        word = next_copy(m, word);
        memcpy((char *)args + i, &word, sizeof word);
    }
}

void bench_release(struct bench_memory *m)
{
    while (m->buffers > 0)
        buffer_free(&m->buffer[--m->buffers].memory);
}
