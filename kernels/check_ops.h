// SPDX-License-Identifier: Apache-2.0
/* Argument validation for the entry points of ops.h: a table of requirements, one row per tensor, checked in
 * one loop. */
#pragma once

#include "kernels/ops.h"

enum { ANY_SIZE = -1 };
enum want_kind { WANT_MATRIX, WANT_VECTOR, WANT_POINTER };

/* One argument and its requirements, built by the functions below. */
struct want {
    const char *name;
    enum want_kind kind;
    bool optional; // may be {0}
    struct tensor tensor;
    const void *pointer;
    enum dtype dtype;
    int64_t rows, columns;
};

/* dtype[rows, columns], row stride at least `columns`; a size may be ANY_SIZE. */
static inline struct want matrix(const char *name, struct tensor t, enum dtype dtype, int64_t rows,
                                 int64_t columns)
{
    return (struct want){
        .name = name, .kind = WANT_MATRIX, .tensor = t, .dtype = dtype, .rows = rows, .columns = columns};
}

/* The op's working type, set by this operand: its own type if that is a working type, else f32, which the
 * check then rejects. */
static inline enum dtype working_type(struct tensor t)
{
    return dtype_is_working(t.dtype) ? t.dtype : F32;
}

/* dtype[count], dense. */
static inline struct want vector(const char *name, struct tensor t, enum dtype dtype, int64_t count)
{
    return (struct want){.name = name, .kind = WANT_VECTOR, .tensor = t, .dtype = dtype, .columns = count};
}

/* A device array with one value per row; required unless there are no rows. */
static inline struct want per_row(const char *name, const void *pointer, int64_t rows)
{
    return (struct want){.name = name, .kind = WANT_POINTER, .pointer = pointer, .rows = rows};
}

static inline struct want or_none(struct want want)
{
    want.optional = true;
    return want;
}

/* BAD_ARGUMENT for the first argument that violates its requirements: "gemm: b is f32[5, 6], not f32[4, 6] (a
 * f32[3, 4], b f32[5, 6], c f32[3, 6])". */
MUST_USE enum status check_wants(enum op_kind kind, const struct want *wants, int count);
#define CHECK_WANTS(kind, wants) TRY(check_wants(kind, wants, (int)(sizeof(wants) / sizeof *(wants))))

/* Validates a dropout of columns [column_begin, column_begin + columns) of `rows` rows. */
MUST_USE enum status check_dropout(enum op_kind kind, const struct dropout *dropout, int64_t rows,
                                   int64_t columns, bool wants_place);

MUST_USE enum status submit_op(struct stream *stream, const struct op *op);
