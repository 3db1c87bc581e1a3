// SPDX-License-Identifier: Apache-2.0
/* Matrix multiplication with cuBLASLt: fp32 exactly, or in TF32 if the recipe permits it; bf16 and f16 with
 * fp32 accumulation, to their own type or to fp32, as for accumulated weight gradients (beta = 1); the bias
 * in the epilogue, and other epilogues where supported (gemm_epilogue.c).
 *
 * cuBLASLt is column-major. A row-major c[M, N] is its N x M matrix, so it computes c^T = op(b)^T op(a)^T:
 * the operands are exchanged, no data is moved.
 *
 * An algorithm is chosen once per shape (gemm_choose.c) and used for the rest of the run. It determines the
 * order of a sum, so the bits of a run depend on the library's version, the GPU and the algorithm cache, if
 * any, and on nothing in the run. */
#include "base/memory.h"
#include "kernels/cuda/matmul/cublaslt.h"
#include "kernels/cuda/runtime/scratch.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status cublaslt_check(const struct cuda_library *lt, const struct cuda_queue *queue,
                           cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return OK;
    bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
    enum status kind = memory ? NO_DEVICE_MEMORY : NOT_SUPPORTED;
    char text[CUDA_OP_CHARS], left[CUDA_FREE_CHARS];
    const char *more = memory ? "; " : "", *free_memory = memory ? cuda_free_text(left) : "";
    if (queue == NULL || queue->op == NULL)
        return fail(kind, "cuda: %s: %s%s%s", call, lt->cublasLtGetStatusString(status), more, free_memory);
    return fail(kind, "cuda: %s: %s%s%s; stream %s, %s", call, lt->cublasLtGetStatusString(status), more,
                free_memory, queue->name, cuda_op_text(queue->op, text));
}

enum status cuda_library_open(const struct cuda_gpu *gpu, const struct device_options *options,
                              struct cuda_library **out)
{
    struct cuda_library *lt = memory_zeroed(1, sizeof *lt, "cuBLASLt's plans");
    enum status status = cublaslt_library_open(lt);
    if (status == OK)
        status = cublaslt_check(lt, NULL, lt->cublasLtCreate(&lt->handle), "cublasLtCreate");
    if (status == OK && options->kernels.matmul_algorithms != NULL)
        status = algorithms_open(options->kernels.matmul_algorithms, &lt->algorithms);
    lt->gpu = *gpu;
    lt->epilogues = options->kernels.epilogues;
    // Without a cache, a choice by timing would be irreproducible.
    if (options->kernels.epilogues == EPILOGUES_AUTO && options->kernels.matmul_algorithms == NULL &&
        !options->nondeterministic)
        lt->epilogues = EPILOGUES_APART;
    if (status == OK)
        *out = lt;
    else
        cuda_library_close(lt);
    return status;
}

enum status cuda_library_check(const char *algorithms)
{
    return algorithms_check(algorithms);
}

/* Matmuls for which the library has no algorithm: much slower than its own. */
static void report_tiled(const struct cuda_library *lt, struct text *out)
{
    char key[ALGORITHM_KEY_CHARS];
    int count = 0;
    for (int i = 0; i < PLANS; i++)
        count += lt->plan[i].known && lt->plan[i].way == PLAN_TILED;
    if (count == 0)
        return;
    text_add(out, "matmul: cuBLASLt has no algorithm for %d shape%s, which run on our own slower kernel\n",
             count, count == 1 ? "" : "s");
    for (int i = 0; i < PLANS; i++) {
        if (!lt->plan[i].known || lt->plan[i].way != PLAN_TILED)
            continue;
        cublaslt_write_key(lt, &lt->plan[i].shape, key);
        text_add(out, "  our own: %s\n", key);
    }
}

void cuda_library_choices(const struct cuda_library *library, struct text *out)
{
    report_tiled(library, out);
    if (library->algorithms != NULL)
        algorithms_report(library->algorithms, out);
    if (library->epilogues != EPILOGUES_APART)
        cublaslt_report_epilogues(library, out);
}

void cuda_library_close(struct cuda_library *library)
{
    if (library == NULL)
        return;
    if (library->handle != NULL)
        library->cublasLtDestroy(library->handle);
    cublaslt_library_close(library);
    algorithms_close(library->algorithms);
    free(library);
}

bool cuda_library_has_epilogues(const struct cuda_library *library)
{
    return library->epilogues != EPILOGUES_APART;
}

/* The largest power of two, up to `limit`, that divides the address. */
static uint32_t alignment_of(const void *data, uintptr_t limit)
{
    uintptr_t bits = (uintptr_t)data | limit;
    return (uint32_t)(bits & (~bits + 1));
}

static bool is_tf32(const struct cuda_queue *queue, const struct gemm *op)
{
    return queue->tf32 && op->a.dtype == F32;
}

/* The library's view of the op: column-major, with our b first and our a second. The gradient of a bias, the
 * row sum of our transposed a, is therefore BGRADB. Its vector is at the end of the workspace. */
static struct call call_of(const struct gemm *op, char *workspace)
{
    enum { ALIGNED = 256 };
    const struct epilogue *e = &op->epilogue;
    bool biased = op->bias.data != NULL;
    struct call call = {.op = op, .out = op->c, .vector = op->bias, .workspace_bytes = GEMM_WORKSPACE_BYTES};
    call.epilogue = biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (e->after.data != NULL) {
        call.epilogue = biased ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        call.out = e->after;
        call.aux = op->c;
    } else if (e->before.data != NULL) {
        call.epilogue = CUBLASLT_EPILOGUE_DGELU;
        call.aux = e->before;
    } else if (e->bias_gradient.data != NULL) {
        call.epilogue = CUBLASLT_EPILOGUE_BGRADB;
        size_t bytes = (size_t)op->c.dim[0] * sizeof(float);
        call.workspace_bytes -= (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
        call.vector = tensor_1d(workspace + call.workspace_bytes, F32, op->c.dim[0]);
    }
    return call;
}

/* Operand alignments are capped at the widest access, so that the address has no further influence on the
 * choice. For bias and aux the library sees the pointers themselves, and may rely on their full alignment. */
static struct shape shape_of(const struct cuda_queue *queue, const struct call *call)
{
    const struct gemm *op = call->op;
    const void *aux = call->aux.data, *vector = call->vector.data;
    return (struct shape){.m = op->c.dim[0],
                          .n = op->c.dim[1],
                          .k = op->a.dim[op->transpose_a ? 0 : 1],
                          .a_stride = op->a.stride[0],
                          .b_stride = op->b.stride[0],
                          .c_stride = call->out.stride[0],
                          .aux_stride = aux != NULL ? call->aux.stride[0] : 0,
                          .transpose_a = op->transpose_a,
                          .transpose_b = op->transpose_b,
                          .accumulate = op->accumulate,
                          .type = (int32_t)op->a.dtype,
                          .c_type = (int32_t)op->c.dtype,
                          .tf32 = is_tf32(queue, op),
                          .epilogue = (int32_t)call->epilogue,
                          .a_alignment = alignment_of(op->a.data, 16),
                          .b_alignment = alignment_of(op->b.data, 16),
                          .c_alignment = alignment_of(call->out.data, 16),
                          .aux_alignment = aux != NULL ? alignment_of(aux, 256) : 0,
                          .bias_alignment = vector != NULL ? alignment_of(vector, 256) : 0};
}

static void call_free(const struct cuda_library *lt, struct call *call)
{
    if (call->preference != NULL)
        lt->cublasLtMatmulPreferenceDestroy(call->preference);
    cublasLtMatrixLayout_t layouts[] = {call->a, call->b, call->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i] != NULL)
            lt->cublasLtMatrixLayoutDestroy(layouts[i]);
    if (call->what != NULL)
        lt->cublasLtMatmulDescDestroy(call->what);
}

static cublasStatus_t set(const struct cuda_library *lt, const struct call *call,
                          cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return lt->cublasLtMatmulDescSetAttribute(call->what, attribute, value, bytes);
}

static cudaDataType_t data_type(enum dtype dtype)
{
    if (dtype == BF16)
        return CUDA_R_16BF;
    return dtype == F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Sets transposes and the epilogue: the library's bias is a column of N elements, which is our row, and aux
 * has the layout of D. Its type defaults to D's. */
static cublasStatus_t describe(const struct cuda_library *lt, struct call *call, bool tf32)
{
    const struct gemm *op = call->op;
    cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasStatus_t s = lt->cublasLtMatmulDescCreate(&call->what, compute, CUDA_R_32F);
    cublasOperation_t first = op->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = op->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t vector_type = data_type(call->vector.dtype);
    int64_t aux_stride = call->aux.stride[0];
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_EPILOGUE, &call->epilogue, sizeof call->epilogue);
    if (s == CUBLAS_STATUS_SUCCESS && call->vector.data != NULL)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call->vector.data, sizeof call->vector.data);
    if (s == CUBLAS_STATUS_SUCCESS && call->vector.data != NULL)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &vector_type, sizeof vector_type);
    if (s == CUBLAS_STATUS_SUCCESS && call->aux.data != NULL)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &call->aux.data, sizeof call->aux.data);
    if (s == CUBLAS_STATUS_SUCCESS && call->aux.data != NULL)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_stride, sizeof aux_stride);
    return s;
}

static cublasStatus_t create_layout(const struct cuda_library *lt, cublasLtMatrixLayout_t *layout,
                                    struct tensor t)
{
    return lt->cublasLtMatrixLayoutCreate(layout, data_type(t.dtype), (uint64_t)t.dim[1], (uint64_t)t.dim[0],
                                          t.stride[0]);
}

static enum status call_create(const struct cuda_library *lt, const struct cuda_queue *queue,
                               struct call *call)
{
    cublasStatus_t s = describe(lt, call, is_tf32(queue, call->op));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = create_layout(lt, &call->a, call->op->a);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = create_layout(lt, &call->b, call->op->b);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = create_layout(lt, &call->c, call->out);
    return cublaslt_check(lt, queue, s, "cublasLtMatmulDescCreate");
}

static struct plan *find_plan(struct cuda_library *lt, const struct shape *shape)
{
    uint64_t hash = 0xcbf29ce484222325U;
    for (size_t i = 0; i < sizeof *shape; i++)
        hash = (hash ^ ((const unsigned char *)shape)[i]) * 0x100000001b3U;
    enum { PROBES = 8 };
    struct plan *plan = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        plan = &lt->plan[(hash + i) % PLANS];
        if (!plan->known || memcmp(&plan->shape, shape, sizeof *shape) == 0)
            return plan;
    }
    plan->known = false; // evicts the last of the row
    return plan;
}

cublasStatus_t cublaslt_multiply(const struct cuda_library *lt, const struct cuda_queue *queue,
                                 const struct call *call, void *d, const cublasLtMatmulAlgo_t *algorithm,
                                 void *workspace)
{
    const struct gemm *op = call->op;
    const float alpha = 1.0F, beta = op->accumulate ? 1.0F : 0.0F;
    return lt->cublasLtMatmul(lt->handle, call->what, &alpha, op->b.data, call->b, op->a.data, call->a, &beta,
                              call->out.data, call->c, d, call->c, algorithm, workspace,
                              call->workspace_bytes, queue->stream);
}

/* The maximum that the op may need in any variant, so that no later step runs out. */
static enum status scratch_of(struct cuda_queue *queue, char **out)
{
    void *scratch;
    TRY(cuda_scratch(queue, cuda_scratch_bytes(queue->op), &scratch));
    *out = scratch;
    return OK;
}

static enum status launch(struct cuda_queue *queue, const struct call *call, void *workspace,
                          const cublasLtMatmulAlgo_t *algorithm)
{
    return cublaslt_check(
        queue->library, queue,
        cublaslt_multiply(queue->library, queue, call, call->out.data, algorithm, workspace),
        "cublasLtMatmul");
}

enum status cublaslt_run(struct cuda_queue *queue, const struct gemm *op,
                         const cublasLtMatmulAlgo_t *algorithm)
{
    char *workspace;
    struct tensor sum = op->epilogue.bias_gradient;
    TRY(scratch_of(queue, &workspace));
    struct call call = call_of(op, workspace);
    enum status status = call_create(queue->library, queue, &call);
    if (status == OK)
        status = launch(queue, &call, workspace, algorithm);
    call_free(queue->library, &call);
    if (status == OK && sum.data != NULL) // the library overwrites, but the gradient is accumulated
        status = cuda_add(queue, &(struct add){.in = call.vector, .out = sum});
    return status;
}

/* Once per shape. */
static enum status make_plan(struct cuda_queue *queue, struct call *call, const struct shape *shape,
                             char *workspace, struct plan *out)
{
    struct cuda_library *lt = queue->library;
    bool has_epilogue = !epilogue_is_none(&call->op->epilogue);
    struct plan plan = {.shape = *shape, .known = true};
    bool refused, slower = false;
    TRY(cublaslt_choose(lt, queue, call, shape, workspace, &plan.algorithm, &refused));
    if (has_epilogue && !refused && lt->epilogues == EPILOGUES_AUTO)
        TRY(cublaslt_is_slower(queue, call->op, shape, &plan.algorithm, &slower));
    if (refused || slower)
        plan.way = has_epilogue ? PLAN_APART : PLAN_TILED;
    *out = plan;
    *find_plan(lt, shape) = plan;
    return OK;
}

enum status cublaslt_plan(struct cuda_queue *queue, const struct gemm *op, struct plan *out)
{
    char *workspace;
    TRY(scratch_of(queue, &workspace));
    struct call call = call_of(op, workspace);
    const struct shape shape = shape_of(queue, &call);
    *out = *find_plan(queue->library, &shape);
    if (out->known)
        return OK;
    enum status status = call_create(queue->library, queue, &call);
    if (status == OK)
        status = make_plan(queue, &call, &shape, workspace, out);
    call_free(queue->library, &call);
    return status;
}

/* Whether the library supports the op: no empty matmul, no bias of another type than c's, and no unaligned
 * bias. It reads a bias in 16-byte pieces, but the preference has no alignment for it, and a kernel that
 * finds it unaligned ends the process ("misaligned address"). */
static bool is_for_library(const struct gemm *op)
{
    enum { BIAS_ALIGNMENT = 16 };
    if (op->a.dim[op->transpose_a ? 0 : 1] == 0)
        return false;
    return op->bias.data == NULL ||
           (op->bias.dtype == op->c.dtype && (uintptr_t)op->bias.data % BIAS_ALIGNMENT == 0);
}

enum status cuda_gemm(struct cuda_queue *queue, const struct gemm *op)
{
    struct plan plan;
    const bool library = is_for_library(op);
    if (!epilogue_is_none(&op->epilogue) && !(library && cublaslt_has_epilogue(op)))
        return cublaslt_parts(queue, op);
    if (!library)
        return cuda_gemm_tiled(queue, op);
    TRY(cublaslt_plan(queue, op, &plan));
    if (plan.way == PLAN_TILED)
        return cuda_gemm_tiled(queue, op);
    return plan.way == PLAN_APART ? cublaslt_parts(queue, op) : cublaslt_run(queue, op, &plan.algorithm);
}
