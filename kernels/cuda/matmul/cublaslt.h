// SPDX-License-Identifier: Apache-2.0
/* Shared by gemm_cublaslt.c, gemm_choose.c and gemm_epilogue.c: the library, and one call to it. */
#pragma once

#include "kernels/cuda/matmul/algorithms.h"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/message.h"
#include "kernels/cuda/runtime/scratch.h"

#include <cublasLt.h>

enum { PLANS = 1024 };

/* The library functions in use. */
#define CUBLASLT_FUNCTIONS(X)               \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtGetVersion)                   \
    X(cublasLtGetStatusString)              \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmulAlgoCheck)              \
    X(cublasLtMatmul)

/* All inputs of the choice of an algorithm. No padding: compared as bytes. */
struct shape {
    int64_t m, n, k, a_stride, b_stride, c_stride, aux_stride;
    int32_t transpose_a, transpose_b, accumulate, type, c_type, tf32, epilogue;
    uint32_t a_alignment, b_alignment, c_alignment, aux_alignment, bias_alignment; // the last two 0: none
};

/* How a matmul runs: as one library call; its epilogue as separate ops; on our own kernel (gemm_tiled.cu). */
enum plan_way { PLAN_LIBRARY, PLAN_APART, PLAN_TILED };

struct plan {
    struct shape shape;
    cublasLtMatmulAlgo_t algorithm; // of PLAN_LIBRARY
    bool known;
    enum plan_way way;
};

struct cuda_library {
    void *module;
    cublasLtHandle_t handle;
#define DECLARE(name) __typeof__(&name) name;
    CUBLASLT_FUNCTIONS(DECLARE)
#undef DECLARE
    struct plan plan[PLANS];       // open addressing; a full table evicts
    struct algorithms *algorithms; // NULL: use the heuristic's first result
    enum matmul_epilogues epilogues;
    struct cuda_gpu gpu;
};

/* The descriptors of one cublasLtMatmul call; all are destroyed after it. */
struct call {
    const struct gemm *op;
    cublasLtEpilogue_t epilogue;
    struct tensor out;    // the library's output: c, or the epilogue's output
    struct tensor aux;    // {0}, or the auxiliary tensor of the epilogue
    struct tensor vector; // {0}, or the bias, or a bias gradient, overwritten
    size_t workspace_bytes;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
};

/* Fills module and functions. NOT_SUPPORTED names the version found, the version required, and the key. */
MUST_USE enum status cublaslt_library_open(struct cuda_library *lt);
void cublaslt_library_close(struct cuda_library *lt);

MUST_USE enum status cublaslt_check(const struct cuda_library *lt, const struct cuda_queue *queue,
                                    cublasStatus_t status, const char *call);

/* Enqueues the matmul: `d` is the call's out, or a buffer of that size. */
cublasStatus_t cublaslt_multiply(const struct cuda_library *lt, const struct cuda_queue *queue,
                                 const struct call *call, void *d, const cublasLtMatmulAlgo_t *algorithm,
                                 void *workspace);

/* Chooses the algorithm of a call: the heuristic's first; or, with a cache, the cached one, or else the
 * fastest of several, which is then cached. Tuning blocks the host, once per shape. *refused: the library has
 * no algorithm for the matmul, or for its epilogue. */
MUST_USE enum status cublaslt_choose(const struct cuda_library *lt, struct cuda_queue *queue,
                                     struct call *call, const struct shape *shape, void *workspace,
                                     cublasLtMatmulAlgo_t *out, bool *refused);

/* Writes the cache key of a shape. */
void cublaslt_write_key(const struct cuda_library *lt, const struct shape *shape,
                        char out[ALGORITHM_KEY_CHARS]);

/* Milliseconds of several runs of way(context), on the GPU's clock, after a warm-up run; negative: it
 * failed. */
MUST_USE enum status cublaslt_time(struct cuda_queue *queue, enum status (*way)(void *context), void *context,
                                   float *ms);

/* Bytes from the first element of a matrix to the last. */
size_t cublaslt_bytes_spanned(struct tensor c);

/* Runs the op and its epilogue as one library call with this algorithm. */
MUST_USE enum status cublaslt_run(struct cuda_queue *queue, const struct gemm *op,
                                  const cublasLtMatmulAlgo_t *algorithm);

/* Returns the plan of the op in *out, and creates it if there is none, which may block the host. */
MUST_USE enum status cublaslt_plan(struct cuda_queue *queue, const struct gemm *op, struct plan *out);

/* ---- gemm_epilogue.c ---- */

/* Whether a plan is of a matmul with an epilogue other than a bias. */
bool cublaslt_is_with_epilogue(const struct plan *plan);

/* For device_choices(): the matmuls whose epilogues are fused. */
void cublaslt_report_epilogues(const struct cuda_library *lt, struct text *out);

/* Whether the library supports the epilogue of this op. */
bool cublaslt_has_epilogue(const struct gemm *op);

/* Runs the matmul, then the epilogue as separate kernels. */
MUST_USE enum status cublaslt_parts(struct cuda_queue *queue, const struct gemm *op);

/* Whether the fused call is slower than separate kernels: timed, or from the cache. */
MUST_USE enum status cublaslt_is_slower(struct cuda_queue *queue, const struct gemm *op,
                                        const struct shape *shape, const cublasLtMatmulAlgo_t *algorithm,
                                        bool *slower);
