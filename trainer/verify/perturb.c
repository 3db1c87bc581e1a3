// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify/perturb.h"

#include "base/memory.h"
#include "kernels/numbers/float_bits.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>

/* A tensor written by an op, and the number of terms in the sums of its elements. */
struct result {
    struct tensor tensor;
    double terms; // 0: no sum, one rounding
};

enum { MAX_RESULTS = 4 };

/* ---- results of an op ---- */

static int add_result(struct result *results, int count, struct tensor tensor, double terms)
{
    if (tensor.data == NULL || tensor_count(tensor) == 0)
        return count;
    results[count] = (struct result){tensor, terms};
    return count + 1;
}

static int results_of_gemm(const struct gemm *op, struct result *out)
{
    // The gradient of a weight: a is transposed. Its errors come from its operands.
    if (op->transpose_a)
        return 0;
    int count = add_result(out, 0, op->c, (double)op->a.dim[1]);
    return add_result(out, count, op->epilogue.after, 0.0);
}

static int results_of_attention(const struct attention_backward *op, struct result *out)
{
    double terms = (double)(op->forward.sequence + op->forward.head_dim);
    int count = add_result(out, 0, op->dq, terms);
    count = add_result(out, count, op->dk, terms);
    return add_result(out, count, op->dv, terms);
}

static int results_of_residual_backward(const struct residual_backward *op, struct result *out, int count)
{
    return op->dropout.probability > 0.0F ? add_result(out, count, op->dx, 0.0) : count;
}

static int results_of_norm(const struct norm_forward *op, struct result *out, int count)
{
    count = add_result(out, count, op->rstd, 0.0);
    return add_result(out, count, op->y, (double)op->x.dim[1]);
}

static int results_of(const struct op *op, struct result out[MAX_RESULTS])
{
    int count = 0;
    switch (op->kind) {
    case OP_GEMM:
        return results_of_gemm(&op->gemm, out);
    case OP_NORM_FORWARD:
        return results_of_norm(&op->norm_forward, out, 0);
    case OP_NORM_BACKWARD:
        return add_result(out, 0, op->norm_backward.dx, (double)op->norm_backward.x.dim[1]);
    case OP_ACTIVATION_FORWARD:
        return add_result(out, 0, op->activation_forward.y, 0.0);
    case OP_ACTIVATION_BACKWARD:
        return add_result(out, 0, op->activation_backward.dx, 0.0);
    case OP_ROPE:
        return add_result(out, 0, op->rope.x, 0.0);
    case OP_ATTENTION_FORWARD:
        count = add_result(out, 0, op->attention_forward.lse, 0.0);
        return add_result(out, count, op->attention_forward.out,
                          (double)(op->attention_forward.sequence + op->attention_forward.head_dim));
    case OP_ATTENTION_BACKWARD:
        return results_of_attention(&op->attention_backward, out);
    case OP_EMBEDDING_FORWARD: // a copy of the table, unless something is added
        return op->embedding_forward.accumulate ? add_result(out, 0, op->embedding_forward.out, 0.0) : 0;
    case OP_RESIDUAL_FORWARD:
        return add_result(out, 0, op->residual_forward.out, 0.0);
    case OP_RESIDUAL_BACKWARD:
        return results_of_residual_backward(&op->residual_backward, out, 0);
    case OP_RESIDUAL_NORM_FORWARD:
        count = add_result(out, 0, op->residual_norm_forward.residual.out, 0.0);
        return results_of_norm(&op->residual_norm_forward.norm, out, count);
    case OP_RESIDUAL_NORM_BACKWARD:
        count = add_result(out, 0, op->residual_norm_backward.norm.dx,
                           (double)op->residual_norm_backward.norm.x.dim[1]);
        return results_of_residual_backward(&op->residual_norm_backward.residual, out, count);
    case OP_SOFTCAP:
        return add_result(out, 0, op->softcap.x, 0.0);
    case OP_LOSS_SUM:
        count = add_result(out, 0, op->loss_sum.sum, (double)op->loss_sum.columns);
        return add_result(out, count, op->loss_sum.target, 0.0);
    case OP_LOSS_BACKWARD:
        return add_result(out, 0, op->loss_backward.logits, 0.0);
    case OP_FILL:
    case OP_COPY:
    case OP_CAST:
    case OP_TO_DEVICE:
    case OP_TO_HOST:
    case OP_ADD:
    case OP_ADD_PARTS:
    case OP_POISON:
    case OP_INIT_NORMAL:
    case OP_COLUMN_SUM:
    case OP_EMBEDDING_BACKWARD:
    case OP_LOSS_MAX:
    case OP_LOSS_FINISH:
    case OP_SQUARES:
    case OP_SUM:
    case OP_CLIP:
    case OP_ADAMW:
    case OP_MAGNITUDE:
    case OP_QUANTIZE:
    case OP_HADAMARD:
    case OP_KIND_COUNT:
        break;
    }
    return 0;
}

/* ---- perturbation ---- */

/* 128 random bits at a time, for elements in order. */
struct bits {
    struct philox generator;
    uint64_t stream, block;
    uint32_t word[4];
    int used; // of 128
};

static uint32_t take_bit(struct bits *b)
{
    if (b->used == 128) {
        philox_words(b->generator, b->stream, b->block++, b->word);
        b->used = 0;
    }
    uint32_t bit = b->word[b->used / 32] >> (b->used % 32) & 1U;
    b->used++;
    return bit;
}

static void change_floats(struct bits *bits, float *x, int64_t count, float relative)
{
    for (int64_t i = 0; i < count; i++)
        x[i] += take_bit(bits) != 0 ? x[i] * relative : -x[i] * relative;
}

/* Moves each element one unit in the last place up or down. In both types, magnitudes are ordered like
 * integers; zeros and non-finite values are unchanged. */
static void change_halves(struct bits *bits, uint16_t *x, int64_t count, uint16_t infinity)
{
    for (int64_t i = 0; i < count; i++) {
        int by = take_bit(bits) != 0 ? 1 : -1;
        uint16_t size = x[i] & 0x7fffU;
        if (size > 0 && size + 1 < infinity)
            x[i] = (uint16_t)(x[i] + by);
    }
}

static void change(struct bits *bits, enum dtype dtype, void *data, int64_t count, float relative)
{
    if (dtype == F32)
        change_floats(bits, data, count, relative);
    else
        change_halves(bits, data, count, dtype == BF16 ? 0x7f80U : 0x7c00U);
}

static enum status move(struct perturbation *p, struct stream *stream, enum op_kind kind, void *to,
                        const void *from, size_t bytes)
{
    const struct op op = {.kind = kind, .transfer = {.to = to, .from = from, .bytes = bytes}};
    TRY(p->inner->submit(stream, &op));
    return p->inner->sync((struct event){stream, p->inner->record(stream)});
}

static void reserve(struct perturbation *p, size_t bytes)
{
    if (bytes <= p->host_bytes)
        return;
    p->host = memory_resized(p->host, bytes, 1, "a tensor to perturb");
    p->host_bytes = bytes;
}

static enum status perturb(struct perturbation *p, struct stream *stream, const struct result *result)
{
    struct tensor t = result->tensor;
    int64_t rows = t.ndim == 2 ? t.dim[0] : 1, columns = t.ndim == 2 ? t.dim[1] : tensor_count(t);
    size_t stride = (t.ndim == 2 ? (size_t)t.stride[0] : 0) * dtype_bytes(t.dtype);
    size_t bytes = stride * (size_t)(rows - 1) + (size_t)columns * dtype_bytes(t.dtype);
    char *data = t.data;
    if (p->inner->traits->is_gpu) { // also when the emulator replaces it
        reserve(p, bytes);
        TRY(move(p, stream, OP_TO_HOST, p->host, t.data, bytes));
        data = p->host;
    } else {
        TRY(p->inner->sync((struct event){stream, p->inner->record(stream)}));
    }
    double terms = result->terms > 0.0 ? fmax(result->terms, p->terms) : p->terms;
    float relative = (float)hypot(sqrt(terms) * 0x1p-24, p->roundoff);
    struct bits bits = {.generator = p->generator, .stream = p->count++, .used = 128};
    for (int64_t row = 0; row < rows; row++)
        change(&bits, t.dtype, data + stride * (size_t)row, columns, relative);
    return data == t.data ? OK : move(p, stream, OP_TO_DEVICE, t.data, p->host, bytes);
}

static enum status perturbed_submit(struct stream *stream, const struct op *op)
{
    struct perturbation *p = (struct perturbation *)(uintptr_t)stream->device->ops;
    struct result results[MAX_RESULTS];
    TRY(p->inner->submit(stream, op));
    int count = results_of(op, results);
    for (int i = 0; i < count; i++)
        TRY(perturb(p, stream, &results[i]));
    return OK;
}

void perturb_device(struct perturbation *perturbation, struct device *device)
{
    perturbation->inner = device->ops;
    perturbation->ops = *device->ops;
    perturbation->ops.submit = perturbed_submit;
    perturbation->ops.replay = NULL; // replay by submitting the ops each time
    device->ops = &perturbation->ops;
}

void perturbation_free(struct perturbation *perturbation)
{
    free(perturbation->host);
    *perturbation = (struct perturbation){0};
}
