// SPDX-License-Identifier: Apache-2.0
/* Buffers of a benchmark whose calls must not find their operands in a cache: each large buffer has several
 * copies, and calls rotate through them.
 *
 *     struct norm_forward f = {.x = x, .y = y};          x and y are in the first of their copies
 *     bench_rotate(&m, &f, sizeof f);  norm_forward(stream, f);      ... the second, the third, the first ...
 *
 * All copies of a buffer together have at least `rotate_bytes`, so that as many other bytes are accessed
 * between two uses of the same bytes. The L2 cache of an H200 has 50 MB, of a B200 126 MB: after 300 MB
 * nothing remains in it. Contents are random normals unless specified: a GPU draws less power and runs faster
 * on zeros and patterns.
 *
 * Caution: arguments are read as words, and every word that is an address in one of the buffers is rotated.
 * Structs must not point to memory that contains further pointers into the buffers. */
#pragma once

#include "kernels/ops.h"

enum { BENCH_BUFFERS = 24, BENCH_ROTATE_MB = 300 };
#define BENCH_ROTATED_MIN \
    1e6 /* Minimum size of a rotated buffer, in bytes; smaller ones have one copy, since they are a small
         * part of a call. */

struct bench_memory {
    struct device *device;
    struct stream *stream;
    size_t rotate_bytes; // 0: one copy each
    struct bench_buffer {
        struct buffer memory;
        size_t bytes; // of one copy
        int copies;
    } buffer[BENCH_BUFFERS];
    int buffers;
    uint32_t fills; // number of filled buffers: each has different numbers
};

/* Returns the first copy of a buffer, uninitialized. Exits if memory is exhausted. */
void *bench_alloc(struct bench_memory *m, size_t bytes);
/* Same, with all copies initialized from `from` in host memory. */
void *bench_filled(struct bench_memory *m, const void *from, size_t bytes);
/* Returns a matrix of normals, different in each copy. */
struct tensor bench_normals(struct bench_memory *m, enum dtype dtype, int64_t rows, int64_t columns);
/* Advances every address in `args`, a struct of `bytes`, to the next copy; after the last one to the
 * first. */
void bench_rotate(const struct bench_memory *m, void *args, size_t bytes);
void bench_release(struct bench_memory *m);
