// SPDX-License-Identifier: Apache-2.0
/* Argument validation for the entry points of ops.h: a table of requirements, one row per tensor, checked in
 * one loop. */
#pragma once

#include "kernels/ops.h"

enum { ANY_SIZE = -1 };
enum arg_kind { ARG_MATRIX, ARG_VECTOR, ARG_POINTER };

/* One argument and its requirements, built by the functions below. */
struct arg_check {
    const char *name;
    enum arg_kind kind;
    bool optional; // may be {0}
    struct tensor tensor;
    const void *pointer;
    enum dtype dtype;
    int64_t rows, columns;
};

/* dtype[rows, columns], row stride at least `columns`; a size may be ANY_SIZE. */
static inline struct arg_check matrix(const char *name, struct tensor t, enum dtype dtype, int64_t rows,
                                      int64_t columns)
{
    return (struct arg_check){
        .name = name, .kind = ARG_MATRIX, .tensor = t, .dtype = dtype, .rows = rows, .columns = columns};
}

/* The op's working type, set by this operand: its own type if that is a working type, else f32, which the
 * check then rejects. */
static inline enum dtype working_type(struct tensor t)
{
    return dtype_is_working(t.dtype) ? t.dtype : F32;
}

/* dtype[count], dense. */
static inline struct arg_check vector(const char *name, struct tensor t, enum dtype dtype, int64_t count)
{
    return (struct arg_check){
        .name = name, .kind = ARG_VECTOR, .tensor = t, .dtype = dtype, .columns = count};
}

/* A device array with one value per row; required unless there are no rows. */
static inline struct arg_check per_row(const char *name, const void *pointer, int64_t rows)
{
    return (struct arg_check){.name = name, .kind = ARG_POINTER, .pointer = pointer, .rows = rows};
}

static inline struct arg_check optional(struct arg_check check)
{
    check.optional = true;
    return check;
}

/* BAD_ARGUMENT for the first argument that violates its requirements: "gemm: b is f32[5, 6], not f32[4, 6] (a
 * f32[3, 4], b f32[5, 6], c f32[3, 6])". */
MUST_USE enum status check_args(enum op_kind kind, const struct arg_check *checks, int count);
#define CHECK_ARGS(kind, checks) TRY(check_args(kind, checks, (int)(sizeof(checks) / sizeof *(checks))))

/* Validates a dropout of columns [column_begin, column_begin + columns) of `rows` rows. */
MUST_USE enum status check_dropout(enum op_kind kind, const struct dropout *dropout, int64_t rows,
                                   int64_t columns, bool needs_offset);

MUST_USE enum status submit_op(struct stream *stream, const struct op *op);
