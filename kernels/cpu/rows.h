// SPDX-License-Identifier: Apache-2.0
/* Row access and task division of the row-wise kernels.
 *
 * Every kernel computes in fp32 and is written once. It loops over a row in segments: an fp32 row is one
 * segment, accessed in place; segments of bf16 and f16 are converted to fp32 on the stack, and rounded once
 * when stored.
 *
 *     for (struct segment p = segment_first(x, t); p.count > 0; p = segment_next(x, p)) {
 *         const float *in = row_in(x, p, buffer[0]);
 *         float *out = row_out(y, p, buffer[1]);
 *         ... out[i] = f(in[i]), i < p.count ...
 *         row_store(y, p, out);
 *     }
 *
 * The segment size is a multiple of every unrolled loop, so per-lane sums carried from segment to segment are
 * bit-identical to those of one loop over the row, and a kernel's result equals that of fp32 on the same
 * values, rounded. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/numbers/narrow.h"

static inline float *f32_row(struct tensor t, int64_t row)
{
    return (float *)t.data + row * t.stride[0];
}

static inline char *row_bytes(struct tensor t, int64_t row, int64_t column)
{
    return (char *)t.data + (size_t)(row * t.stride[0] + column) * dtype_bytes(t.dtype);
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t blocks_of(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

/* Rows per task without sums across rows: enough to outweigh the overhead of a task. */
static inline int64_t rows_each_task(int64_t columns)
{
    enum { TASK_ELEMENTS = 16384 };
    return columns < TASK_ELEMENTS ? TASK_ELEMENTS / (columns > 0 ? columns : 1) : 1;
}

enum { SEGMENT_ELEMENTS = 1024 };

/* Columns [column, column + count) of a row. */
struct segment {
    int64_t row, column, count;
};

static inline struct segment segment_at(enum dtype dtype, int64_t columns, int64_t row, int64_t column)
{
    int64_t left = columns - column;
    return (struct segment){row, column, dtype == F32 ? left : min_i64(left, SEGMENT_ELEMENTS)};
}

/* The first segment of row `row` of a matrix, or of a vector. */
static inline struct segment segment_first(struct tensor t, int64_t row)
{
    return segment_at(t.dtype, t.dim[t.ndim - 1], row, 0);
}

/* count 0 after the last. */
static inline struct segment segment_next(struct tensor t, struct segment p)
{
    return segment_at(t.dtype, t.dim[t.ndim - 1], p.row, p.column + p.count);
}

/* A segment in fp32: in place, or converted in `buffer`, which holds the segment. */
static inline float *row_in(struct tensor t, struct segment p, float *buffer)
{
    char *at = row_bytes(t, p.row, p.column);
    if (t.dtype == F32)
        return (float *)(void *)at;
    widen_floats(t.dtype, at, buffer, p.count);
    return buffer;
}

/* The destination of a segment, for row_store(). */
static inline float *row_out(struct tensor t, struct segment p, float *buffer)
{
    return t.dtype == F32 ? (float *)(void *)row_bytes(t, p.row, p.column) : buffer;
}

static inline void row_store(struct tensor t, struct segment p, const float *from)
{
    if (t.dtype != F32)
        narrow_floats(t.dtype, from, row_bytes(t, p.row, p.column), p.count);
}

/* The same columns of a vector, which every row shares. */
static inline struct segment segment_of_vector(struct segment p)
{
    p.row = 0;
    return p;
}

/* One element. */
static inline float row_value(struct tensor t, int64_t row, int64_t column)
{
    float buffer = 0.0F;
    return *row_in(t, (struct segment){row, column, 1}, &buffer);
}
