// SPDX-License-Identifier: Apache-2.0
/* What gemm_cublaslt.c and gemm_choose.c share: the library, and one call of it. */
#pragma once

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/message.h"
#include "kernels/cuda/scratch.h"

#include <cublasLt.h>

enum { WORKSPACE_BYTES = GEMM_WORKSPACE_BYTES, PLANS = 1024 };

/* The library's functions that are used here. */
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

/* All that the choice of an algorithm depends on. No padding: compared as bytes. */
struct shape {
    int64_t m, n, k, a_stride, b_stride, c_stride;
    int32_t transpose_a, transpose_b, accumulate, type, c_type, tf32;
    uint32_t a_alignment, b_alignment, c_alignment, bias_alignment; // the last 0: no bias
};

struct plan {
    struct shape shape;
    cublasLtMatmulAlgo_t algorithm;
    bool known;
};

struct cuda_library {
    void *module;
    cublasLtHandle_t handle;
#define DECLARE(name) __typeof__(&name) name;
    CUBLASLT_FUNCTIONS(DECLARE)
#undef DECLARE
    struct plan plan[PLANS];       // open addressing; a full table forgets
    struct algorithms *algorithms; // NULL: the heuristic's first is taken
    struct cuda_gpu gpu;
};

/* What one call of cublasLtMatmul is told; all of it is freed again. */
struct call {
    const struct gemm *op;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
};

MUST_USE enum status cublaslt_check(const struct cuda_library *lt, const struct cuda_queue *queue,
                                    cublasStatus_t status, const char *call);

/* Puts the product on the queue: `d` is op's c, or as large a piece of memory. */
cublasStatus_t cublaslt_multiply(const struct cuda_library *lt, const struct cuda_queue *queue,
                                 const struct call *call, void *d, const cublasLtMatmulAlgo_t *algorithm,
                                 void *workspace);

/* The algorithm for this call: the heuristic's first; or, where choices are kept, what is kept for the shape,
 * or else the fastest of some, which is kept then. Tuning blocks the host, once for each shape. */
MUST_USE enum status cublaslt_choose(const struct cuda_library *lt, struct cuda_queue *queue,
                                     struct call *call, const struct shape *shape, void *workspace,
                                     cublasLtMatmulAlgo_t *out);
