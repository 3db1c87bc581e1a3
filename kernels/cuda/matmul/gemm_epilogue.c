// SPDX-License-Identifier: Apache-2.0
/* GEMM epilogues (struct epilogue, ops.h): fused by the library, or as separate kernels.
 *
 *     apart    never fused: the device reports no epilogues, and the entry points submit two ops
 *     fused    fused, if the library has an algorithm for the shape
 *     auto     the faster of the two, timed once per shape and cached like an algorithm (algorithms.h)
 *
 * Documented constraints (cublasLt.h): GELU is the tanh approximation; the aux matrix of GELU_AUX and DGELU,
 * of D's type, has a leading dimension that is a multiple of 8; BGRADB's vector has D's type and is
 * overwritten. The heuristic rejects any other unsupported case. There is no rounding between the matmul and
 * its epilogue.
 *
 * Caution: trials must not change accumulated outputs. They may write outputs that are only overwritten,
 * since the real call follows the trials. */
#include "kernels/cuda/matmul/cublaslt.h"
#include "kernels/cuda/runtime/scratch.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

static bool is_aux(struct tensor t)
{
    return t.stride[0] % 8 == 0 && (uintptr_t)t.data % 16 == 0;
}

bool cublaslt_has_epilogue(const struct gemm *op)
{
    const struct epilogue *e = &op->epilogue;
    if (op->a.dim[op->transpose_a ? 0 : 1] == 0)
        return false;
    if (e->bias_gradient.data != NULL)
        return op->c.dtype == F32 && op->bias.data == NULL &&
               (size_t)op->c.dim[0] * sizeof(float) <= GEMM_WORKSPACE_BYTES / 2; // at the workspace's end
    if (e->activation != ACTIVATION_GELU_TANH || op->c.dtype != op->a.dtype)
        return false;
    return e->after.data != NULL ? is_aux(op->c) : is_aux(e->before) && op->bias.data == NULL;
}

enum status cublaslt_parts(struct cuda_queue *queue, const struct gemm *op)
{
    const struct epilogue *e = &op->epilogue;
    struct gemm alone = *op;
    alone.epilogue = (struct epilogue){0};
    TRY(cuda_gemm(queue, &alone));
    if (e->after.data != NULL)
        return cuda_activation_forward(
            queue, &(struct activation_forward){.kind = e->activation, .x = op->c, .y = e->after});
    if (e->before.data != NULL)
        return cuda_activation_backward(
            queue,
            &(struct activation_backward){.kind = e->activation, .x = e->before, .dy = op->c, .dx = op->c});
    if (op->a.dim[0] == 0)
        return OK;
    return cuda_column_sum(queue, &(struct column_sum){.in = op->a, .out = e->bias_gradient});
}

/* ---- reporting ---- */

bool cublaslt_is_with_epilogue(const struct plan *plan)
{
    return plan->known && plan->shape.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
           plan->shape.epilogue != CUBLASLT_EPILOGUE_BIAS;
}

void cublaslt_report_epilogues(const struct cuda_library *lt, struct text *out)
{
    char key[ALGORITHM_KEY_CHARS];
    int count[2] = {0, 0};
    for (int i = 0; i < PLANS; i++)
        if (cublaslt_is_with_epilogue(&lt->plan[i]))
            count[lt->plan[i].way == PLAN_APART]++;
    text_add(out, "matmul epilogues: %d shapes fused in cuBLASLt, %d as separate kernels\n", count[false],
             count[true]);
    for (int i = 0; i < PLANS; i++) {
        if (!cublaslt_is_with_epilogue(&lt->plan[i]))
            continue;
        cublaslt_write_key(lt, &lt->plan[i].shape, key);
        text_add(out, "  %s: %s\n", lt->plan[i].way == PLAN_APART ? "apart" : "fused", key);
    }
}

/* ---- timing ---- */

struct ways {
    struct cuda_queue *queue;
    struct gemm op;
    const cublasLtMatmulAlgo_t *algorithm;
};

static enum status fused(void *context)
{
    const struct ways *w = context;
    return cublaslt_run(w->queue, &w->op, w->algorithm);
}

static enum status parts(void *context)
{
    const struct ways *w = context;
    return cublaslt_parts(w->queue, &w->op);
}

static enum status time_both(struct ways *ways, bool *slower)
{
    float together, apart;
    TRY(cublaslt_time(ways->queue, fused, ways, &together));
    TRY(cublaslt_time(ways->queue, parts, ways, &apart));
    *slower = together < 0.0F || (apart >= 0.0F && apart <= together);
    return OK;
}

/* The trials accumulate into a buffer of their own, with the sum at its beginning. */
static enum status time_with_bias_gradient(struct ways *ways, bool *slower)
{
    struct tensor *c = &ways->op.c, *sum = &ways->op.epilogue.bias_gradient;
    struct buffer d;
    TRY(cuda_workspace(ways->queue, cublaslt_bytes_spanned(*c), &d));
    c->data = sum->data = d.data;
    enum status status = time_both(ways, slower);
    buffer_free(&d); // all trials have completed
    return status;
}

enum status cublaslt_is_slower(struct cuda_queue *queue, const struct gemm *op, const struct shape *shape,
                               const cublasLtMatmulAlgo_t *algorithm, bool *slower)
{
    static const char question[] = "apart? ";
    struct algorithms *file = queue->library->algorithms;
    char key[ALGORITHM_KEY_CHARS], key_of_shape[ALGORITHM_KEY_CHARS];
    struct algorithm kept = {{0}}; // its first word: 1 means slower
    bool found = false;
    cublaslt_write_key(queue->library, shape, key_of_shape);
    snprintf(key, sizeof key, "%s%.*s", question, (int)(sizeof key - sizeof question), key_of_shape);
    if (file != NULL)
        TRY(algorithms_find(file, key, &kept, &found));
    if (!found) {
        struct ways ways = {queue, *op, algorithm};
        struct gemm alone = *op;
        struct plan ignored;
        alone.epilogue = (struct epilogue){0};
        TRY(cublaslt_plan(queue, &alone, &ignored)); // runs its trials before these allocate
        TRY(op->epilogue.bias_gradient.data != NULL ? time_with_bias_gradient(&ways, slower)
                                                    : time_both(&ways, slower));
        kept.word[0] = *slower;
        if (file != NULL)
            TRY(algorithms_keep(file, key, &kept));
    }
    *slower = kept.word[0] != 0;
    return OK;
}
