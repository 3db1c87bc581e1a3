// SPDX-License-Identifier: Apache-2.0
/* Choice of a cuBLASLt algorithm: the heuristic sorts them by estimated time; with a cache (algorithms.h),
 * the first ones are run and timed.
 *
 *     key of the shape ─ in the file? ─ yes: that one, if the library accepts it
 *                                     └ no: time CANDIDATES, cache the fastest
 *
 * Caution: trials must have no side effects. Their result goes to a separate buffer, also when c is
 * accumulated into. */
#include "kernels/cuda/matmul/cublaslt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CANDIDATES = 8, WARM_UP = 1, REPEATS = 3 };
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(struct algorithm), "stored unchanged");

/* ---- candidates from the heuristic ---- */

/* The preference's alignments are those of the library's operands, in its order. Split-K may reduce partial
 * results in the type of the result (the schemes "in place" and "output type"), which would round each of
 * them for a 16-bit type; these are excluded. */
static enum status create_preference(const struct cuda_library *lt, const struct cuda_queue *queue,
                                     struct call *call, const struct shape *shape)
{
    const uint64_t workspace = call->workspace_bytes;
    const uint32_t reductions =
        call->out.dtype == F32 ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } preferences[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &shape->b_alignment, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &shape->a_alignment, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &shape->c_alignment, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &shape->c_alignment, sizeof(uint32_t)},
    };
    TRY(cublaslt_check(lt, queue, lt->cublasLtMatmulPreferenceCreate(&call->preference),
                       "cublasLtMatmulPreferenceCreate"));
    for (size_t i = 0; i < sizeof preferences / sizeof *preferences; i++)
        TRY(cublaslt_check(
            lt, queue,
            lt->cublasLtMatmulPreferenceSetAttribute(call->preference, preferences[i].attribute,
                                                     preferences[i].value, preferences[i].bytes),
            "cublasLtMatmulPreferenceSetAttribute"));
    return OK;
}

/* *found 0: the library has no algorithm for this matmul. */
static enum status query_candidates(const struct cuda_library *lt, const struct cuda_queue *queue,
                                    struct call *call, const struct shape *shape, int wanted,
                                    cublasLtMatmulHeuristicResult_t out[CANDIDATES], int *found)
{
    TRY(create_preference(lt, queue, call, shape));
    cublasStatus_t s = lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, call->what, call->b, call->a, call->c,
                                                          call->c, call->preference, wanted, out, found);
    if (s == CUBLAS_STATUS_SUCCESS && *found > 0)
        return OK;
    *found = 0;
    if (s == CUBLAS_STATUS_SUCCESS || s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE)
        return OK;
    return cublaslt_check(lt, queue, s, "cublasLtMatmulAlgoGetHeuristic");
}

/* ---- timing ---- */

static enum status repeat(enum status (*way)(void *context), void *context, int times)
{
    for (int i = 0; i < times; i++)
        TRY(way(context));
    return OK;
}

static enum status time_between(struct cuda_queue *queue, cudaEvent_t begin, cudaEvent_t end,
                                enum status (*way)(void *context), void *context, float *ms)
{
    if (repeat(way, context, WARM_UP) != OK)
        return OK;
    TRY(cuda_check(queue, cudaEventRecord(begin, queue->stream), "cudaEventRecord"));
    if (repeat(way, context, REPEATS) != OK)
        return OK;
    TRY(cuda_check(queue, cudaEventRecord(end, queue->stream), "cudaEventRecord"));
    TRY(cuda_block(queue, end));
    return cuda_check(queue, cudaEventElapsedTime(ms, begin, end), "cudaEventElapsedTime");
}

enum status cublaslt_time(struct cuda_queue *queue, enum status (*way)(void *context), void *context,
                          float *ms)
{
    cudaEvent_t begin = NULL, end = NULL;
    *ms = -1.0F;
    enum status status =
        cuda_check(queue, cudaEventCreateWithFlags(&begin, cudaEventDefault), "cudaEventCreateWithFlags");
    if (status == OK)
        status =
            cuda_check(queue, cudaEventCreateWithFlags(&end, cudaEventDefault), "cudaEventCreateWithFlags");
    if (status == OK)
        status = time_between(queue, begin, end, way, context, ms);
    if (end != NULL)
        cudaEventDestroy(end);
    if (begin != NULL)
        cudaEventDestroy(begin);
    return status;
}

struct trial {
    const struct cuda_library *lt;
    struct cuda_queue *queue;
    const struct call *call;
    void *d, *workspace;
    const cublasLtMatmulAlgo_t *algorithm;
};

static enum status multiply_once(void *context)
{
    const struct trial *t = context;
    return cublaslt_check(t->lt, t->queue,
                          cublaslt_multiply(t->lt, t->queue, t->call, t->d, t->algorithm, t->workspace),
                          "cublasLtMatmul");
}

/* The index of the fastest; the first, if none can be timed: the library may reject its own candidates. */
static enum status time_all(struct trial *t, const cublasLtMatmulHeuristicResult_t *candidates, int count,
                            int *fastest)
{
    float least = 0.0F;
    *fastest = 0;
    for (int i = 0; i < count; i++) {
        float ms;
        if (candidates[i].state != CUBLAS_STATUS_SUCCESS ||
            candidates[i].workspaceSize > t->call->workspace_bytes)
            continue;
        t->algorithm = &candidates[i].algo;
        TRY(cublaslt_time(t->queue, multiply_once, t, &ms));
        if (ms < 0.0F || (least > 0.0F && ms >= least))
            continue;
        least = ms;
        *fastest = i;
    }
    return OK;
}

size_t cublaslt_bytes_spanned(struct tensor c)
{
    return (size_t)((c.dim[0] - 1) * c.stride[0] + c.dim[1]) * dtype_bytes(c.dtype);
}

static enum status find_fastest(const struct cuda_library *lt, struct cuda_queue *queue,
                                const struct call *call, void *workspace,
                                const cublasLtMatmulHeuristicResult_t *candidates, int count, int *fastest)
{
    struct buffer d = {0};
    struct trial t = {.lt = lt, .queue = queue, .call = call, .workspace = workspace};
    *fastest = 0;
    if (count == 1)
        return OK;
    TRY(cuda_workspace(queue, cublaslt_bytes_spanned(call->out), &d));
    t.d = d.data;
    enum status status = time_all(&t, candidates, count, fastest);
    buffer_free(&d); // all trials have completed
    return status;
}

/* ---- cache ---- */

void cublaslt_write_key(const struct cuda_library *lt, const struct shape *shape,
                        char out[ALGORITHM_KEY_CHARS])
{
    int length = snprintf(
        out, ALGORITHM_KEY_CHARS,
        "%s %d.%d cublasLt %zu m %" PRId64 " n %" PRId64 " k %" PRId64 " strides %" PRId64 " %" PRId64
        " %" PRId64 " transposed %d %d accumulate %d types %s %s tf32 %d aligned %u %u %u bias %u",
        lt->gpu.name, lt->gpu.major, lt->gpu.minor, lt->cublasLtGetVersion(), shape->m, shape->n, shape->k,
        shape->a_stride, shape->b_stride, shape->c_stride, shape->transpose_a, shape->transpose_b,
        shape->accumulate, dtype_name((enum dtype)shape->type), dtype_name((enum dtype)shape->c_type),
        shape->tf32, shape->a_alignment, shape->b_alignment, shape->c_alignment, shape->bias_alignment);
    if (shape->epilogue != CUBLASLT_EPILOGUE_DEFAULT && shape->epilogue != CUBLASLT_EPILOGUE_BIAS)
        snprintf(out + length, (size_t)(ALGORITHM_KEY_CHARS - length), " epilogue %d aux %" PRId64 " %u",
                 shape->epilogue, shape->aux_stride, shape->aux_alignment);
}

/* Whether the library accepts an algorithm from the file. */
static bool is_accepted(const struct cuda_library *lt, const struct call *call,
                        const cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulHeuristicResult_t result;
    return lt->cublasLtMatmulAlgoCheck(lt->handle, call->what, call->b, call->a, call->c, call->c, algorithm,
                                       &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= call->workspace_bytes;
}

enum status cublaslt_choose(const struct cuda_library *lt, struct cuda_queue *queue, struct call *call,
                            const struct shape *shape, void *workspace, cublasLtMatmulAlgo_t *out,
                            bool *refused)
{
    cublasLtMatmulHeuristicResult_t candidates[CANDIDATES];
    char key[ALGORITHM_KEY_CHARS];
    struct algorithm kept;
    int count, fastest = 0;
    bool found = false;
    TRY(query_candidates(lt, queue, call, shape, lt->algorithms != NULL ? CANDIDATES : 1, candidates,
                         &count));
    *refused =
        count == 0 || (!epilogue_is_none(&call->op->epilogue) && !is_accepted(lt, call, &candidates[0].algo));
    if (*refused)
        return OK;
    *out = candidates[0].algo;
    if (lt->algorithms == NULL)
        return OK;
    cublaslt_write_key(lt, shape, key);
    TRY(algorithms_find(lt->algorithms, key, &kept, &found));
    if (!found) {
        TRY(find_fastest(lt, queue, call, workspace, candidates, count, &fastest));
        memcpy(&kept, &candidates[fastest].algo, sizeof kept);
        TRY(algorithms_keep(lt->algorithms, key, &kept));
    }
    cublasLtMatmulAlgo_t chosen;
    memcpy(&chosen, &kept, sizeof chosen);
    if (is_accepted(lt, call, &chosen))
        *out = chosen;
    return OK;
}
