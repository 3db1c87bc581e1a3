// SPDX-License-Identifier: Apache-2.0
/* Memory of a benchmark whose calls must not find their operands in a cache: each large buffer has several
 * copies, and every call takes the next ones.
 *
 *     struct norm_forward f = {.x = x, .y = y};          x and y are in the first of their copies
 *     bench_rotate(&m, &f, sizeof f);  norm_forward(stream, f);      ... the second, the third, the first ...
 *
 * A buffer's copies together have at least `rotate_bytes`, so that between two uses of the same bytes as many
 * others pass. An H200's second-level cache has 50 MB, a B200's 126 MB: after 300 MB nothing is left in it.
 * Contents are random normals, unless the caller gives them: a GPU draws less power and runs faster on zeros
 * and patterns.
 *
 * Caution: arguments are read as words, and a word that is an address in one of the buffers is moved.
 * Structs may not point to memory that holds further pointers into the buffers. */
#pragma once

#include "kernels/ops.h"

enum { BENCH_BUFFERS = 24, BENCH_ROTATE_MB = 300 };
#define BENCH_ROTATED_LEAST \
    1e6 /* bytes of a buffer; smaller ones have one copy: they are few of a call's bytes */

struct bench_memory {
    struct device *device;
    struct stream *stream;
    size_t rotate_bytes; // 0: one copy of each
    struct bench_buffer {
        struct buffer memory;
        size_t bytes; // of one copy
        int copies;
    } buffer[BENCH_BUFFERS];
    int buffers;
    uint32_t fills; // so far: each has numbers of its own
};

/* The first copy of a buffer, unset. Exits when there is no memory. */
void *bench_take(struct bench_memory *m, size_t bytes);
/* The same, every copy as at `from`, in the host's memory. */
void *bench_filled(struct bench_memory *m, const void *from, size_t bytes);
/* A matrix of normals, others in each copy. */
struct tensor bench_normals(struct bench_memory *m, enum dtype dtype, int64_t rows, int64_t columns);
/* Every address in `args`, a struct of `bytes`, becomes that in the next copy; after the last comes the
 * first. */
void bench_rotate(const struct bench_memory *m, void *args, size_t bytes);
void bench_release(struct bench_memory *m);
