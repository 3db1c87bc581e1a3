// SPDX-License-Identifier: Apache-2.0
/* The switch over op kinds, and error messages. */
#include "base/text.h"
#include "kernels/cuda/runtime/cuda.h"

#include <stdio.h>

/* The tensor that represents the op's size. */
static struct tensor main_tensor(const struct op *op)
{
    if (op->kind == OP_CAST && op->cast.in.dtype == F32) // the narrower of the two
        return op->cast.out;
    switch (op->kind) {
#define OP_ROW(kind, name, args, size) \
    case OP_##kind:                    \
        return op->name.size;
        OPS(OP_ROW)
#undef OP_ROW
    case OP_TO_DEVICE:
    case OP_TO_HOST:
        return tensor_1d(NULL, I32, (int64_t)(op->transfer.bytes / sizeof(int32_t)));
    case OP_POISON:
        return op->poison.out;
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
    const char *more = memory ? "; " : "", *free_memory = memory ? cuda_free_text(left) : "";
    if (queue == NULL || queue->op == NULL)
        return fail(status, "cuda: %s: %s%s%s", call, cudaGetErrorString(error), more, free_memory);
    return fail(status, "cuda: %s: %s%s%s; stream %s, %s", call, cudaGetErrorString(error), more, free_memory,
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

void cuda_report_attention_launches(const struct attention_launches *launches, struct text *out)
{
    static const char *const names[] = {
        [ATTENTION_GENERIC] = "generic", [ATTENTION_MMA] = "mma.sync", [ATTENTION_WGMMA] = "wgmma"};
    const char *separator = "attention kernels launched: ";
    for (int i = 0; i < ATTENTION_KERNELS; i++) {
        const bool forward = launches->forward[i], backward = launches->backward[i];
        if (!forward && !backward)
            continue;
        text_add(out, "%s%s (%s%s%s)", separator, names[i], forward ? "forward" : "",
                 forward && backward ? ", " : "", backward ? "backward" : "");
        separator = "; ";
    }
    if (separator[0] == ';')
        text_add(out, "\n");
}

/* The kernels assume self-attention with heads of one size. */
static enum status check_attention(const struct op *any)
{
    const struct attention_forward *op = any->kind == OP_ATTENTION_FORWARD ? &any->attention_forward
                                         : any->kind == OP_ATTENTION_BACKWARD
                                             ? &any->attention_backward.forward
                                             : NULL;
    if (op == NULL)
        return OK;
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
    TRY(check_attention(op));
    switch (op->kind) {
#define OP_ROW(kind, name, args, size) \
    case OP_##kind:                    \
        return cuda_##name(queue, &op->name);
        OPS(OP_ROW)
#undef OP_ROW
    case OP_POISON:
        return OK;
    case OP_TO_DEVICE:
    case OP_TO_HOST:
    case OP_KIND_COUNT:
        break;
    }
    die(__FILE__, __LINE__, "op kind", "unknown op kind %d", (int)op->kind);
}
