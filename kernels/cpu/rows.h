// SPDX-License-Identifier: Apache-2.0
/* Row access and task division of the row-wise kernels.
 *
 * Every kernel computes in fp32 and is written once. It loops over a row in pieces: an fp32 row is one piece,
 * accessed in place; pieces of bf16 and f16 are converted to fp32 on the stack, and rounded once when stored.
 *
 *     for (struct piece p = piece_first(x, t); p.count > 0; p = piece_next(x, p)) {
 *         const float *in = row_in(x, p, room[0]);
 *         float *out = row_out(y, p, room[1]);
 *         ... out[i] = f(in[i]), i < p.count ...
 *         row_store(y, p, out);
 *     }
 *
 * The piece size is a multiple of every unrolled loop, so per-lane sums carried from piece to piece are
 * bit-identical to those of one loop over the row, and a kernel's result equals that of fp32 on the same
 * values, rounded. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/narrow.h"

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

enum { PIECE = 1024 };

/* Columns [column, column + count) of a row. */
struct piece {
    int64_t row, column, count;
};

static inline struct piece piece_at(enum dtype dtype, int64_t columns, int64_t row, int64_t column)
{
    int64_t left = columns - column;
    return (struct piece){row, column, dtype == F32 ? left : min_i64(left, PIECE)};
}

/* The first piece of row `row` of a matrix, or of a vector. */
static inline struct piece piece_first(struct tensor t, int64_t row)
{
    return piece_at(t.dtype, t.dim[t.ndim - 1], row, 0);
}

/* count 0 after the last. */
static inline struct piece piece_next(struct tensor t, struct piece p)
{
    return piece_at(t.dtype, t.dim[t.ndim - 1], p.row, p.column + p.count);
}

/* A piece in fp32: in place, or converted in `room`, which holds the piece. */
static inline float *row_in(struct tensor t, struct piece p, float *room)
{
    char *at = row_bytes(t, p.row, p.column);
    if (t.dtype == F32)
        return (float *)(void *)at;
    widen_floats(t.dtype, at, room, p.count);
    return room;
}

/* The destination of a piece, for row_store(). */
static inline float *row_out(struct tensor t, struct piece p, float *room)
{
    return t.dtype == F32 ? (float *)(void *)row_bytes(t, p.row, p.column) : room;
}

static inline void row_store(struct tensor t, struct piece p, const float *from)
{
    if (t.dtype != F32)
        narrow_floats(t.dtype, from, row_bytes(t, p.row, p.column), p.count);
}

/* The same columns of a vector, which every row shares. */
static inline struct piece piece_of_vector(struct piece p)
{
    p.row = 0;
    return p;
}

/* One element. */
static inline float row_value(struct tensor t, int64_t row, int64_t column)
{
    float room = 0.0F;
    return *row_in(t, (struct piece){row, column, 1}, &room);
}
