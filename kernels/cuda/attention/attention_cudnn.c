// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention/attention_cudnn.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, MESSAGE_CHARS = 400 };

enum status cudnn_check(const struct cudnn *cudnn, const struct cuda_queue *queue, cudnnStatus_t status,
                        const char *call, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return OK;
    char text[CUDA_OP_CHARS], message[MESSAGE_CHARS] = "";
    cudnn->library.cudnnGetLastErrorString(message, sizeof message);
    for (char *c = message; *c != '\0'; c++)
        if (*c == '\n')
            *c = ' ';
    const bool known = queue != NULL && queue->op != NULL;
    const bool memory = status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    char left[CUDA_FREE_CHARS];
    return fail(memory ? NO_DEVICE_MEMORY : NOT_SUPPORTED, "cuda: %s%s%s%s: %s%s%s%s%s%s%s%s%s", call,
                *what != '\0' ? " (" : "", what, *what != '\0' ? ")" : "",
                cudnn->library.cudnnGetErrorString(status), *message != '\0' ? ": " : "", message,
                memory ? "; " : "", memory ? cuda_free_text(left) : "", known ? "; stream " : "",
                known ? queue->name : "", known ? ", " : "", known ? cuda_op_text(queue->op, text) : "");
}

/* A device */

static enum status describe_gpu(struct cudnn *c, const char *gpu)
{
    const struct cudnn_library *library = &c->library;
    TRY(cudnn_check(c, NULL,
                    library->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &c->gpu),
                    "cudnnBackendCreateDescriptor", "gpu"));
    TRY(cudnn_check(c, NULL,
                    library->cudnnBackendSetAttribute(c->gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                      CUDNN_TYPE_CHAR, (int64_t)strlen(gpu) + 1, gpu),
                    "cudnnBackendSetAttribute", "gpu"));
    return cudnn_check(c, NULL, library->cudnnBackendFinalize(c->gpu), "cudnnBackendFinalize", "gpu");
}

enum status cudnn_open(bool deterministic, const char *gpu, struct cudnn **out)
{
    struct cudnn *c = memory_zeroed(1, sizeof *c, "cuDNN's plans");
    c->deterministic = deterministic;
    enum status status = cudnn_library_open(&c->library);
    if (status != OK) {
        free(c);
        return status;
    }
    if (gpu != NULL)
        status = describe_gpu(c, gpu);
    else
        status = cudnn_check(c, NULL, c->library.cudnnCreate(&c->handle), "cudnnCreate", "");
    if (status == OK)
        *out = c;
    else
        cudnn_close(c);
    return status;
}

static void plan_destroy(const struct cudnn *c, struct cudnn_plan *plan)
{
    while (plan->parts > 0)
        (void)c->library.cudnnBackendDestroyDescriptor(plan->part[--plan->parts]);
    free(plan);
}

void cudnn_close(struct cudnn *cudnn)
{
    if (cudnn == NULL)
        return;
    while (cudnn->plans > 0)
        plan_destroy(cudnn, cudnn->plan[--cudnn->plans]);
    free(cudnn->plan);
    if (cudnn->gpu != NULL)
        (void)cudnn->library.cudnnBackendDestroyDescriptor(cudnn->gpu);
    if (cudnn->handle != NULL)
        (void)cudnn->library.cudnnDestroy(cudnn->handle);
    cudnn_library_close(&cudnn->library);
    free(cudnn);
}

/* Shapes */

static bool is_aligned(struct tensor t)
{
    return (uintptr_t)t.data % 16 == 0 && t.stride[0] % 8 == 0;
}

bool attention_suits_cudnn(const struct attention_forward *op)
{
    return (op->q.dtype == BF16 || op->q.dtype == F16) && op->head_dim % 8 == 0 && op->head_dim <= 128 &&
           op->document == NULL && !(op->dropout.probability > 0.0F) && op->window == 0 &&
           op->alibi.heads == 0 && op->softcap == 0.0F && op->sequence > 1 && is_aligned(op->q) &&
           is_aligned(op->k) && is_aligned(op->v) && is_aligned(op->out);
}

bool attention_backward_suits_cudnn(const struct attention_backward *op)
{
    return attention_suits_cudnn(&op->forward) && is_aligned(op->dout) && is_aligned(op->dq) &&
           is_aligned(op->dk) && is_aligned(op->dv);
}

struct cudnn_shape cudnn_forward_shape(const struct attention_forward *op)
{
    return (struct cudnn_shape){
        .batch = op->batch,
        .sequence = op->sequence,
        .heads = op->q.dim[1] / op->head_dim,
        .groups = op->k.dim[1] / op->head_dim,
        .head_dim = op->head_dim,
        .row = {[CUDNN_Q] = op->q.stride[0],
                [CUDNN_K] = op->k.stride[0],
                [CUDNN_V] = op->v.stride[0],
                [CUDNN_OUT] = op->out.stride[0]},
        .dtype = (int32_t)op->q.dtype,
    };
}

struct cudnn_shape cudnn_backward_shape(const struct attention_backward *op)
{
    struct cudnn_shape shape = cudnn_forward_shape(&op->forward);
    shape.row[CUDNN_DOUT] = op->dout.stride[0];
    shape.row[CUDNN_DQ] = op->dq.stride[0];
    shape.row[CUDNN_DK] = op->dk.stride[0];
    shape.row[CUDNN_DV] = op->dv.stride[0];
    shape.backward = true;
    return shape;
}

/* Plans */

static void keep(struct cudnn *c, struct cudnn_plan *plan)
{
    if (c->plans == c->capacity) {
        int capacity = 2 * c->capacity + 8;
        c->plan = memory_resized(c->plan, (size_t)capacity, sizeof *c->plan, "cuDNN's plans");
        c->capacity = capacity;
    }
    c->plan[c->plans++] = plan;
}

enum status cudnn_plan_of(struct cudnn *cudnn, const struct cuda_queue *queue,
                          const struct cudnn_shape *shape, const struct cudnn_plan **out)
{
    for (int i = 0; i < cudnn->plans; i++) {
        if (memcmp(&cudnn->plan[i]->shape, shape, sizeof *shape) == 0) {
            *out = cudnn->plan[i];
            return OK;
        }
    }
    struct cudnn_plan *plan = memory_zeroed(1, sizeof *plan, "cuDNN's plans");
    plan->shape = *shape;
    enum status status = cudnn_plan_create(cudnn, queue, plan);
    if (status != OK) {
        plan_destroy(cudnn, plan);
        return status;
    }
    keep(cudnn, plan);
    *out = plan;
    return OK;
}

/* Runs */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static struct cudnn_addresses addresses_of(const struct attention_forward *op)
{
    return (struct cudnn_addresses){
        .matrix = {[CUDNN_Q] = op->q.data,
                   [CUDNN_K] = op->k.data,
                   [CUDNN_V] = op->v.data,
                   [CUDNN_OUT] = op->out.data},
        .lse = op->lse.data,
        .scale = op->scale,
    };
}

/* Bytes of a packed lse; 0 if the op's own layout is packed. */
static size_t packed_bytes(const struct attention_forward *op)
{
    if (op->batch == 1 && op->lse.stride[0] == op->sequence)
        return 0;
    return aligned((size_t)(op->lse.dim[0] * op->lse.dim[1]) * sizeof(float));
}

enum status cudnn_attention_forward(struct cudnn *cudnn, struct cuda_queue *queue,
                                    const struct attention_forward *op)
{
    const struct cudnn_shape shape = cudnn_forward_shape(op);
    const size_t lse = packed_bytes(op);
    struct cudnn_addresses at = addresses_of(op);
    const struct cudnn_plan *plan;
    void *memory;
    TRY(cudnn_plan_of(cudnn, queue, &shape, &plan));
    TRY(cuda_library_scratch(queue, lse + (size_t)plan->workspace_bytes + 1, &memory));
    if (lse > 0)
        at.lse = memory;
    TRY(cudnn_plan_run(cudnn, queue, plan, &at, (char *)memory + lse));
    return lse > 0 ? cuda_unpack_lse(queue, op, memory) : OK;
}

enum status cudnn_attention_backward(struct cudnn *cudnn, struct cuda_queue *queue,
                                     const struct attention_backward *op)
{
    const struct cudnn_shape shape = cudnn_backward_shape(op);
    struct cudnn_addresses at = addresses_of(&op->forward);
    const struct cudnn_plan *plan;
    void *memory;
    TRY(cudnn_plan_of(cudnn, queue, &shape, &plan));
    const size_t rows = (size_t)(shape.batch * shape.heads * shape.sequence) * sizeof(float);
    const size_t lse = packed_bytes(&op->forward), delta = aligned(rows);
    const size_t sums = cudnn->deterministic ? 0 : aligned(rows * (size_t)shape.head_dim);
    TRY(cuda_library_scratch(queue, lse + delta + sums + (size_t)plan->workspace_bytes + 1, &memory));
    if (lse > 0) {
        at.lse = memory;
        TRY(cuda_pack_lse(queue, &op->forward, at.lse));
    }
    at.matrix[CUDNN_DOUT] = op->dout.data;
    at.matrix[CUDNN_DQ] = op->dq.data;
    at.matrix[CUDNN_DK] = op->dk.data;
    at.matrix[CUDNN_DV] = op->dv.data;
    at.delta = (float *)((char *)memory + lse);
    at.dq_sum = (float *)((char *)memory + lse + delta);
    return cudnn_plan_run(cudnn, queue, plan, &at, (char *)memory + lse + delta + sums);
}
