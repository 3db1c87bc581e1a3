// SPDX-License-Identifier: Apache-2.0
/* Matrix multiplication through cuBLASLt: fp32 exactly, or in TF32 where the recipe allows it; bf16 and f16
 * with sums in fp32, to their own type or to fp32, which is how gradients of weights are added up (beta = 1);
 * bias in the epilogue.
 *
 * cuBLASLt thinks in columns. A row-major c[M, N] is its N x M matrix, so it is asked for c^T = op(b)^T
 * op(a)^T: the operands change places, nothing is moved.
 *
 * The library is opened when the first device opens, and not linked: it has half a gigabyte, and every start
 * of every program, those for the CPU too, would map it. It stays then: to map it again for the next device
 * takes 0.15 s.
 *
 * An algorithm is chosen once for each shape (gemm_choose.c) and kept for the run: which one decides the
 * order of a sum, so the bits of a run depend on the library's version, the GPU and the file of choices where
 * there is one, and on nothing in the run. */
#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status cublaslt_check(const struct cuda_library *lt, const struct cuda_queue *queue,
                           cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return OK;
    char text[CUDA_OP_CHARS];
    if (queue == NULL || queue->op == NULL)
        return fail(NOT_SUPPORTED, "cuda: %s: %s", call, lt->cublasLtGetStatusString(status));
    return fail(NOT_SUPPORTED, "cuda: %s: %s; stream %s, %s", call, lt->cublasLtGetStatusString(status),
                queue->name, cuda_op_text(queue->op, text));
}

#if CUDA_IS_EMULATED // and linked
static enum status load(struct cuda_library *lt)
{
#define ROW(name) lt->name = name;
    CUBLASLT_FUNCTIONS(ROW)
#undef ROW
    return OK;
}
#else
static enum status load(struct cuda_library *lt)
{
    const char *const names[] = {"libcublasLt.so.13", CUDA_LIBRARY_DIR "/libcublasLt.so.13"};
    for (size_t i = 0; i < sizeof names / sizeof *names && lt->module == NULL; i++)
        lt->module = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (lt->module == NULL)
        return fail(NOT_SUPPORTED,
                    "cluster.device cuda: %s; cuBLASLt 13 comes with the CUDA toolkit: put its folder "
                    "on LD_LIBRARY_PATH",
                    dlerror());
    const struct {
        const char *name;
        void *to;
    } functions[] = {
#define ROW(name) {#name, &lt->name},
        CUBLASLT_FUNCTIONS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(lt->module, functions[i].name);
        if (address == NULL)
            return fail(NOT_SUPPORTED, "cluster.device cuda: %s: %s", names[0], dlerror());
        memcpy(functions[i].to, &address, sizeof address);
    }
    return OK;
}
#endif

enum status cuda_library_open(const struct cuda_gpu *gpu, const char *algorithms, struct cuda_library **out)
{
    struct cuda_library *lt = calloc(1, sizeof *lt);
    if (lt == NULL)
        return fail(NO_MEMORY, "no memory for cuBLASLt's plans");
    enum status status = load(lt);
    if (status == OK)
        status = cublaslt_check(lt, NULL, lt->cublasLtCreate(&lt->handle), "cublasLtCreate");
    if (status == OK && algorithms != NULL)
        status = algorithms_open(algorithms, &lt->algorithms);
    lt->gpu = *gpu;
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

void cuda_library_choices(const struct cuda_library *lt, struct text *out)
{
    if (lt->algorithms != NULL)
        algorithms_say(lt->algorithms, out);
}

void cuda_library_close(struct cuda_library *lt)
{
    if (lt == NULL)
        return;
    if (lt->handle != NULL)
        lt->cublasLtDestroy(lt->handle);
    if (lt->module != NULL)
        dlclose(lt->module);
    algorithms_close(lt->algorithms);
    free(lt);
}

/* The largest power of two, up to `most`, that divides the address. */
static uint32_t alignment_of(const void *data, uintptr_t most)
{
    uintptr_t bits = (uintptr_t)data | most;
    return (uint32_t)(bits & (~bits + 1));
}

static bool is_tf32(const struct cuda_queue *queue, const struct gemm *op)
{
    return queue->tf32 && op->a.dtype == F32;
}

/* Operands: up to the widest access there is, for where else a tensor lies is not to change the choice. Of
 * the bias the library sees the pointer itself, and may rely on all that it promises. */
static struct shape shape_of(const struct cuda_queue *queue, const struct gemm *op)
{
    return (struct shape){.m = op->c.dim[0],
                          .n = op->c.dim[1],
                          .k = op->a.dim[op->transpose_a ? 0 : 1],
                          .a_stride = op->a.stride[0],
                          .b_stride = op->b.stride[0],
                          .c_stride = op->c.stride[0],
                          .transpose_a = op->transpose_a,
                          .transpose_b = op->transpose_b,
                          .accumulate = op->accumulate,
                          .type = (int32_t)op->a.dtype,
                          .c_type = (int32_t)op->c.dtype,
                          .a_alignment = alignment_of(op->a.data, 16),
                          .b_alignment = alignment_of(op->b.data, 16),
                          .c_alignment = alignment_of(op->c.data, 16),
                          .bias_alignment = op->bias.data != NULL ? alignment_of(op->bias.data, 256) : 0,
                          .tf32 = is_tf32(queue, op)};
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

/* Which transposes, and the bias: theirs is a column of N numbers, which is our row. */
static cublasStatus_t describe(const struct cuda_library *lt, struct call *call, const struct gemm *op,
                               bool tf32)
{
    cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasStatus_t s = lt->cublasLtMatmulDescCreate(&call->what, compute, CUDA_R_32F);
    cublasOperation_t first = op->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = op->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t bias_type = data_type(op->bias.dtype);
    cublasLtEpilogue_t epilogue = op->bias.data != NULL ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (s == CUBLAS_STATUS_SUCCESS && op->bias.data != NULL)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &op->bias.data, sizeof op->bias.data);
    if (s == CUBLAS_STATUS_SUCCESS && op->bias.data != NULL)
        s = set(lt, call, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
    return s;
}

static cublasStatus_t lay_out(const struct cuda_library *lt, cublasLtMatrixLayout_t *layout, struct tensor t)
{
    return lt->cublasLtMatrixLayoutCreate(layout, data_type(t.dtype), (uint64_t)t.dim[1], (uint64_t)t.dim[0],
                                          t.stride[0]);
}

static enum status call_create(const struct cuda_library *lt, const struct cuda_queue *queue,
                               const struct gemm *op, struct call *call)
{
    cublasStatus_t s = describe(lt, call, op, is_tf32(queue, op));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lay_out(lt, &call->a, op->a);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lay_out(lt, &call->b, op->b);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lay_out(lt, &call->c, op->c);
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
    plan->known = false; // the last of the row is forgotten
    return plan;
}

cublasStatus_t cublaslt_multiply(const struct cuda_library *lt, const struct cuda_queue *queue,
                                 const struct call *call, void *d, const cublasLtMatmulAlgo_t *algorithm,
                                 void *workspace)
{
    const struct gemm *op = call->op;
    const float alpha = 1.0F, beta = op->accumulate ? 1.0F : 0.0F;
    return lt->cublasLtMatmul(lt->handle, call->what, &alpha, op->b.data, call->b, op->a.data, call->a, &beta,
                              op->c.data, call->c, d, call->c, algorithm, workspace, WORKSPACE_BYTES,
                              queue->stream);
}

static enum status multiply(struct cuda_library *lt, struct cuda_queue *queue, const struct gemm *op,
                            struct call *call)
{
    const struct shape shape = shape_of(queue, op);
    struct plan *plan = find_plan(lt, &shape);
    void *workspace;
    TRY(call_create(lt, queue, op, call));
    TRY(cuda_scratch(queue, WORKSPACE_BYTES, &workspace));
    if (!plan->known) {
        TRY(cublaslt_choose(lt, queue, call, &shape, workspace, &plan->algorithm));
        plan->shape = shape;
        plan->known = true;
    }
    return cublaslt_check(lt, queue,
                          cublaslt_multiply(lt, queue, call, op->c.data, &plan->algorithm, workspace),
                          "cublasLtMatmul");
}

enum status cuda_gemm(struct cuda_queue *queue, const struct gemm *op)
{
    struct call call = {.op = op};
    // cuBLASLt takes neither no products, nor a bias of another type than c's.
    if (op->a.dim[op->transpose_a ? 0 : 1] == 0 || (op->bias.data != NULL && op->bias.dtype != op->c.dtype))
        return cuda_gemm_tiled(queue, op);
    enum status status = multiply(queue->library, queue, op, &call);
    call_free(queue->library, &call);
    return status;
}
