// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_plan.h"

#include <stdio.h>

static void set_shape(struct op_record *out, enum dtype dtype, int64_t a, int64_t b, int64_t c)
{
    out->dtype = dtype;
    out->shape[0] = a;
    out->shape[1] = b;
    out->shape[2] = c;
}

static void set_rows(struct op_record *out, struct tensor t)
{
    int64_t columns = t.ndim > 0 ? t.dim[t.ndim - 1] : 1;
    set_shape(out, t.dtype, columns > 0 ? tensor_count(t) / columns : 0, columns, 0);
}

static void set_attention(struct op_record *out, const struct attention_forward *a)
{
    set_shape(out, a->q.dtype, a->batch * (a->q.dim[1] / a->head_dim), a->sequence, a->head_dim);
}

/* The tensor that determines the size of the op. */
static struct tensor size_of(const struct op *op)
{
    switch (op->kind) {
#define OP_ROW(kind, name, args, size) \
    case OP_##kind:                    \
        return op->name.size;
        OPS(OP_ROW)
#undef OP_ROW
    case OP_POISON:
        return op->poison.out;
    case OP_TO_DEVICE:
    case OP_TO_HOST:
    case OP_KIND_COUNT:
        break;
    }
    return (struct tensor){.data = NULL};
}

/* Elements of all members. */
static int64_t list_elements(const struct op *op)
{
    int64_t elements = 0;
    for (int64_t i = 0; op->kind == OP_SQUARES && i < op->squares.count; i++)
        elements += tensor_count(op->squares.at[i].x);
    for (int64_t i = 0; op->kind == OP_SUM && i < op->sum.count; i++)
        elements += tensor_count(op->sum.at[i].x);
    for (int64_t i = 0; op->kind == OP_ADAMW && i < op->adamw.count; i++)
        elements += tensor_count(op->adamw.at[i].weight);
    return elements;
}

struct op_record op_record(const struct op *op)
{
    struct op_record out = {.kind = op->kind, .launches = 1, .cost = op_cost(op)};
    switch ((int)op->kind) {
    case OP_GEMM:
        set_shape(&out, op->gemm.a.dtype, op->gemm.c.dim[0], op->gemm.c.dim[1],
                  op->gemm.transpose_a ? op->gemm.a.dim[0] : op->gemm.a.dim[1]);
        out.transposed = op->gemm.transpose_a;
        break;
    case OP_ATTENTION_FORWARD:
        set_attention(&out, &op->attention_forward);
        break;
    case OP_ATTENTION_BACKWARD:
        set_attention(&out, &op->attention_backward.forward);
        break;
    case OP_TO_DEVICE:
    case OP_TO_HOST:
        set_shape(&out, F32, 1, (int64_t)op->transfer.bytes, 0);
        break;
    case OP_SQUARES:
    case OP_SUM:
    case OP_ADAMW:
        set_shape(&out, size_of(op).dtype, 1, list_elements(op), 0);
        break;
    default:
        set_rows(&out, size_of(op));
        break;
    }
    if (out.cost.flops == 0.0 && out.cost.bytes == 0.0)
        out.launches = 0;
    return out;
}

bool op_record_equals(const struct op_record *a, const struct op_record *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->shape[2] == b->shape[2] && a->launches == b->launches &&
           a->transposed == b->transposed && a->cost.flops == b->cost.flops && a->cost.bytes == b->cost.bytes;
}

const char *op_record_text(const struct op_record *record, char out[OP_RECORD_CHARS])
{
    int length =
        snprintf(out, OP_RECORD_CHARS, "%s %s %lld x %lld", op_name(record->kind), dtype_name(record->dtype),
                 (long long)record->shape[0], (long long)record->shape[1]);
    if (record->shape[2] > 0)
        snprintf(out + length, (size_t)(OP_RECORD_CHARS - length), " x %lld%s", (long long)record->shape[2],
                 record->transposed ? ", a transposed" : "");
    return out;
}
