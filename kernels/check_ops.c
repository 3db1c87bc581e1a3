// SPDX-License-Identifier: Apache-2.0
/* Op names, and the error messages of argument validation. */
#include "kernels/check_ops.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define OP_ROW(kind, name, args, size) [OP_##kind] = #name,
    OPS(OP_ROW)
#undef OP_ROW
        [OP_TO_DEVICE] = "copy_to_device",
    [OP_TO_HOST] = "copy_to_host",
    [OP_POISON] = "poison",
};
_Static_assert(sizeof names / sizeof *names == OP_KIND_COUNT, "one name per kind of op");

const char *op_name(enum op_kind kind)
{
    return (int)kind >= 0 && kind < OP_KIND_COUNT ? names[kind] : "?";
}

static const char *size_text(int64_t size, char out[24])
{
    if (size == ANY_SIZE)
        snprintf(out, 24, "any");
    else
        snprintf(out, 24, "%lld", (long long)size);
    return out;
}

static bool size_fits(int64_t size, int64_t expected)
{
    return size >= 0 && (expected == ANY_SIZE || size == expected);
}

static bool fits(const struct arg_check *check)
{
    const struct tensor *t = &check->tensor;
    switch (check->kind) {
    case ARG_POINTER:
        return check->pointer != NULL || check->optional || check->rows == 0;
    case ARG_VECTOR:
        if (t->data == NULL)
            return check->optional;
        return t->dtype == check->dtype && t->ndim == 1 && size_fits(t->dim[0], check->columns) &&
               (t->dim[0] <= 1 || t->stride[0] == 1);
    case ARG_MATRIX:
        if (t->data == NULL)
            return check->optional;
        return t->dtype == check->dtype && t->ndim == 2 && size_fits(t->dim[0], check->rows) &&
               size_fits(t->dim[1], check->columns) && (t->dim[1] <= 1 || t->stride[1] == 1) &&
               (t->dim[0] <= 1 || t->stride[0] >= t->dim[1]);
    }
    return false;
}

static void add_expected(struct text *text, const struct arg_check *check)
{
    char rows[24], columns[24];
    if (check->kind == ARG_VECTOR)
        text_add(text, "dense %s[%s]", dtype_name(check->dtype), size_text(check->columns, columns));
    else
        text_add(text, "%s[%s, %s] with dense rows", dtype_name(check->dtype), size_text(check->rows, rows),
                 size_text(check->columns, columns));
}

enum status check_args(enum op_kind kind, const struct arg_check *checks, int count)
{
    const struct arg_check *bad = NULL;
    for (int i = 0; i < count && bad == NULL; i++)
        bad = fits(&checks[i]) ? NULL : &checks[i];
    if (bad == NULL)
        return OK;
    if (bad->kind == ARG_POINTER)
        return fail(BAD_ARGUMENT, "%s: %s is NULL, but there are %lld rows", op_name(kind), bad->name,
                    (long long)bad->rows);

    char shape[TENSOR_TEXT_CHARS];
    struct text text = {0};
    text_add(&text, "%s: %s is %s", op_name(kind), bad->name, tensor_text(bad->tensor, shape));
    if (bad->tensor.data != NULL && bad->tensor.ndim == 2)
        text_add(&text, " with strides %lld, %lld", (long long)bad->tensor.stride[0],
                 (long long)bad->tensor.stride[1]);
    text_add(&text, ", not ");
    add_expected(&text, bad);
    text_add(&text, " (");
    for (int i = 0; i < count; i++) {
        if (checks[i].kind != ARG_POINTER)
            text_add(&text, "%s%s %s", i > 0 ? ", " : "", checks[i].name,
                     tensor_text(checks[i].tensor, shape));
    }
    enum status status = fail(BAD_ARGUMENT, "%s)", text_chars(&text));
    text_free(&text);
    return status;
}

enum status check_dropout(enum op_kind kind, const struct dropout *dropout, int64_t rows, int64_t columns,
                          bool needs_offset)
{
    float p = dropout->probability;
    if (!(p >= 0.0F && p < 1.0F))
        return fail(BAD_ARGUMENT, "%s: dropout probability %g is not in [0, 1)", op_name(kind), (double)p);
    if (p == 0.0F)
        return OK;
    const struct arg_check checks[] = {
        per_row("dropout.sample", dropout->sample, rows),
        per_row("dropout.sample_offset", dropout->sample_offset, needs_offset ? rows : 0)};
    CHECK_ARGS(kind, checks);
    if (dropout->column_begin < 0 || columns > dropout->columns - dropout->column_begin)
        return fail(BAD_ARGUMENT, "%s: dropout of columns %lld to %lld of %lld", op_name(kind),
                    (long long)dropout->column_begin, (long long)(dropout->column_begin + columns),
                    (long long)dropout->columns);
    return OK;
}

struct op *op_copy(const struct op *op, size_t *bytes)
{
    size_t list = op->kind == OP_SQUARES ? (size_t)op->squares.count * sizeof *op->squares.at
                  : op->kind == OP_SUM   ? (size_t)op->sum.count * sizeof *op->sum.at
                  : op->kind == OP_ADAMW ? (size_t)op->adamw.count * sizeof *op->adamw.at
                                         : 0;
    struct op *copy = malloc(sizeof *copy + list);
    if (copy == NULL)
        return NULL;
    *bytes = sizeof *copy + list;
    *copy = *op;
    if (op->kind == OP_SQUARES)
        copy->squares.at = memcpy(copy + 1, op->squares.at, list);
    else if (op->kind == OP_SUM)
        copy->sum.at = memcpy(copy + 1, op->sum.at, list);
    else if (op->kind == OP_ADAMW)
        copy->adamw.at = memcpy(copy + 1, op->adamw.at, list);
    return copy;
}

enum status submit_op(struct stream *stream, const struct op *op)
{
    struct device *device = stream->device;
    if (device->replaying != NULL && device->replaying != stream) {
        device->replay_violation = "an op on another stream";
        return BAD_ARGUMENT;
    }
    return device->ops->submit(stream, op);
}
