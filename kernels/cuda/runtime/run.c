// SPDX-License-Identifier: Apache-2.0
/* The one switch over op kinds, and error messages. */
#include "base/text.h"
#include "kernels/cuda/runtime/cuda.h"

#include <stdio.h>

/* The tensor that represents the op's size. */
static struct tensor main_tensor(const struct op *op)
{
    switch (op->kind) {
    case OP_GEMM:
        return op->gemm.a;
    case OP_FILL:
        return op->fill.out;
    case OP_COPY:
        return op->copy.out;
    case OP_CAST: // the narrower of the two
        return op->cast.in.dtype == F32 ? op->cast.out : op->cast.in;
    case OP_TO_DEVICE:
    case OP_TO_HOST:
        return tensor_1d(NULL, I32, (int64_t)(op->transfer.bytes / sizeof(int32_t)));
    case OP_ADD:
        return op->add.out;
    case OP_ADD_PARTS:
        return op->add_parts.parts;
    case OP_POISON:
        return op->poison.out;
    case OP_INIT_NORMAL:
        return op->init_normal.out;
    case OP_COLUMN_SUM:
        return op->column_sum.in;
    case OP_NORM_FORWARD:
        return op->norm_forward.x;
    case OP_NORM_BACKWARD:
        return op->norm_backward.x;
    case OP_ACTIVATION_FORWARD:
        return op->activation_forward.x;
    case OP_ACTIVATION_BACKWARD:
        return op->activation_backward.x;
    case OP_ROPE:
        return op->rope.x;
    case OP_ATTENTION_FORWARD:
        return op->attention_forward.q;
    case OP_ATTENTION_BACKWARD:
        return op->attention_backward.forward.q;
    case OP_EMBEDDING_FORWARD:
        return op->embedding_forward.out;
    case OP_EMBEDDING_BACKWARD:
        return op->embedding_backward.dout;
    case OP_RESIDUAL_FORWARD:
        return op->residual_forward.x;
    case OP_RESIDUAL_BACKWARD:
        return op->residual_backward.dout;
    case OP_RESIDUAL_NORM_FORWARD:
        return op->residual_norm_forward.norm.x;
    case OP_RESIDUAL_NORM_BACKWARD:
        return op->residual_norm_backward.norm.x;
    case OP_LOSS_MAX:
        return op->loss_max.logits;
    case OP_LOSS_SUM:
        return op->loss_sum.logits;
    case OP_LOSS_FINISH:
        return op->loss_finish.sum;
    case OP_LOSS_BACKWARD:
        return op->loss_backward.logits;
    case OP_SQUARES:
        return op->squares.at[0].x;
    case OP_SUM:
        return op->sum.at[0].x;
    case OP_CLIP:
        return op->clip.squares;
    case OP_ADAMW:
        return op->adamw.at[0].weight;
    case OP_MAGNITUDE:
        return op->magnitude.in;
    case OP_QUANTISE:
        return op->quantize.in;
    case OP_HADAMARD:
        return op->hadamard.in;
    case OP_KIND_COUNT:
        break;
    }
    return (struct tensor){0};
}

const char *cuda_op_text(const struct op *op, char out[CUDA_OP_CHARS])
{
    char shape[TENSOR_TEXT_CHARS], b[TENSOR_TEXT_CHARS], c[TENSOR_TEXT_CHARS];
    if (op->kind == OP_GEMM)
        snprintf(out, CUDA_OP_CHARS, "gemm(a %s%s, b %s%s, c %s)", tensor_text(op->gemm.a, shape),
                 op->gemm.transpose_a ? " transposed" : "", tensor_text(op->gemm.b, b),
                 op->gemm.transpose_b ? " transposed" : "", tensor_text(op->gemm.c, c));
    else
        snprintf(out, CUDA_OP_CHARS, "%s(%s)", op_name(op->kind), tensor_text(main_tensor(op), shape));
    return out;
}

enum status cuda_check(const struct cuda_queue *queue, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return OK;
    bool memory = error == cudaErrorMemoryAllocation;
    enum status status = memory ? NO_DEVICE_MEMORY : NOT_SUPPORTED;
    char text[CUDA_OP_CHARS], left[CUDA_FREE_CHARS];
    if (memory)
        (void)cudaGetLastError(); // clear it: the check after the next launch would report it
    const char *more = memory ? "; " : "", *room = memory ? cuda_free_text(left) : "";
    if (queue == NULL || queue->op == NULL)
        return fail(status, "cuda: %s: %s%s%s", call, cudaGetErrorString(error), more, room);
    return fail(status, "cuda: %s: %s%s%s; stream %s, %s", call, cudaGetErrorString(error), more, room,
                queue->name, cuda_op_text(queue->op, text));
}

const char *cuda_free_text(char out[CUDA_FREE_CHARS])
{
    size_t left = 0, total = 0;
    char free_now[NUMBER_CHARS], all[NUMBER_CHARS];
    if (cudaMemGetInfo(&left, &total) != cudaSuccess) { // there may be no memory even for a context
        (void)cudaGetLastError();
        snprintf(out, CUDA_FREE_CHARS, "free memory unknown (cudaMemGetInfo failed)");
        return out;
    }
    snprintf(out, CUDA_FREE_CHARS, "%s of the GPU's %s are free", bytes_text((int64_t)left, free_now),
             bytes_text((int64_t)total, all));
    return out;
}

enum status cuda_workspace(struct cuda_queue *queue, size_t bytes, struct buffer *out)
{
    char text[CUDA_OP_CHARS];
    enum status status = buffer_alloc(queue->device, PART_WORKSPACE, bytes, out);
    if (status == OK || queue->op == NULL)
        return status;
    return fail(status, "%s; stream %s, %s", fail_text(), queue->name, cuda_op_text(queue->op, text));
}

enum status cuda_library_scratch(struct cuda_queue *queue, size_t bytes, void **out)
{
    if (queue->scratch.data == NULL || queue->scratch.bytes < bytes) {
        if (queue->is_captured)
            return fail(NO_MEMORY, "cuda: %s needs more scratch memory than in its first run",
                        queue->op != NULL ? op_name(queue->op->kind) : "a library");
        // Work submitted earlier may still use the old buffer.
        TRY(cuda_check(queue, cudaStreamSynchronize(queue->stream), "cudaStreamSynchronize"));
        buffer_free(&queue->scratch);
        TRY(cuda_workspace(queue, bytes, &queue->scratch));
    }
    *out = queue->scratch.data;
    return OK;
}

enum status cuda_scratch(struct cuda_queue *queue, size_t bytes, void **out)
{
    CHECK(queue->op != NULL && bytes <= cuda_scratch_bytes(queue->op));
    return cuda_library_scratch(queue, bytes, out);
}

/* The kernels assume self-attention with heads of one size. */
static enum status check_attention(const struct attention_forward *op)
{
    const int64_t keys = attention_keys(op), value_dim = attention_value_dim(op);
    if (keys == op->sequence && op->query_begin == 0 && value_dim == op->head_dim)
        return OK;
    return fail(
        NOT_SUPPORTED,
        "cuda: attention of %lld queries from key row %lld on to %lld keys, with heads of %lld (q, k) "
        "and %lld (v): only equal numbers from row 0 on, and equal sizes, are implemented; use "
        "cluster.device=cpu",
        (long long)op->sequence, (long long)op->query_begin, (long long)keys, (long long)op->head_dim,
        (long long)value_dim);
}

enum status cuda_run(struct cuda_queue *queue, const struct op *op)
{
    switch (op->kind) {
    case OP_GEMM:
        return cuda_gemm(queue, &op->gemm);
    case OP_FILL:
        return cuda_fill(queue, &op->fill);
    case OP_COPY:
        return cuda_copy(queue, &op->copy);
    case OP_CAST:
        return cuda_cast(queue, &op->cast);
    case OP_ADD:
        return cuda_add(queue, &op->add);
    case OP_ADD_PARTS:
        return cuda_add_parts(queue, &op->add_parts);
    case OP_POISON:
        return OK;
    case OP_INIT_NORMAL:
        return cuda_init_normal(queue, &op->init_normal);
    case OP_COLUMN_SUM:
        return cuda_column_sum(queue, &op->column_sum);
    case OP_NORM_FORWARD:
        return cuda_norm_forward(queue, &op->norm_forward);
    case OP_NORM_BACKWARD:
        return cuda_norm_backward(queue, &op->norm_backward);
    case OP_ACTIVATION_FORWARD:
        return cuda_activation_forward(queue, &op->activation_forward);
    case OP_ACTIVATION_BACKWARD:
        return cuda_activation_backward(queue, &op->activation_backward);
    case OP_ROPE:
        return cuda_rope(queue, &op->rope);
    case OP_ATTENTION_FORWARD:
        TRY(check_attention(&op->attention_forward));
        return cuda_attention_forward(queue, &op->attention_forward);
    case OP_ATTENTION_BACKWARD:
        TRY(check_attention(&op->attention_backward.forward));
        return cuda_attention_backward(queue, &op->attention_backward);
    case OP_EMBEDDING_FORWARD:
        return cuda_embedding_forward(queue, &op->embedding_forward);
    case OP_EMBEDDING_BACKWARD:
        return cuda_embedding_backward(queue, &op->embedding_backward);
    case OP_RESIDUAL_FORWARD:
        return cuda_residual_forward(queue, &op->residual_forward);
    case OP_RESIDUAL_BACKWARD:
        return cuda_residual_backward(queue, &op->residual_backward);
    case OP_RESIDUAL_NORM_FORWARD:
        return cuda_residual_norm_forward(queue, &op->residual_norm_forward);
    case OP_RESIDUAL_NORM_BACKWARD:
        return cuda_residual_norm_backward(queue, &op->residual_norm_backward);
    case OP_LOSS_MAX:
        return cuda_loss_max(queue, &op->loss_max);
    case OP_LOSS_SUM:
        return cuda_loss_sum(queue, &op->loss_sum);
    case OP_LOSS_FINISH:
        return cuda_loss_finish(queue, &op->loss_finish);
    case OP_LOSS_BACKWARD:
        return cuda_loss_backward(queue, &op->loss_backward);
    case OP_SQUARES:
        return cuda_squares(queue, &op->squares);
    case OP_SUM:
        return cuda_sum(queue, &op->sum);
    case OP_CLIP:
        return cuda_clip(queue, &op->clip);
    case OP_ADAMW:
        return cuda_adamw(queue, &op->adamw);
    case OP_MAGNITUDE:
        return cuda_magnitude(queue, &op->magnitude);
    case OP_QUANTISE:
        return cuda_quantize(queue, &op->quantize);
    case OP_HADAMARD:
        return cuda_hadamard(queue, &op->hadamard);
    case OP_TO_DEVICE:
    case OP_TO_HOST:
    case OP_KIND_COUNT:
        break;
    }
    die(__FILE__, __LINE__, "op kind", "%d is none", (int)op->kind);
}
