// SPDX-License-Identifier: Apache-2.0
/* What gemm_cublaslt.c, gemm_choose.c and gemm_epilogue.c share: the library, and one call of it. */
#pragma once

#include "kernels/cuda/matmul/algorithms.h"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/message.h"
#include "kernels/cuda/runtime/scratch.h"

#include <cublasLt.h>

enum { PLANS = 1024 };

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
    int64_t m, n, k, a_stride, b_stride, c_stride, aux_stride;
    int32_t transpose_a, transpose_b, accumulate, type, c_type, tf32, epilogue;
    uint32_t a_alignment, b_alignment, c_alignment, aux_alignment, bias_alignment; // the last two 0: none
};

struct plan {
    struct shape shape;
    cublasLtMatmulAlgo_t algorithm;
    bool known;
    bool apart; // what comes behind the product is not for the library: there is no algorithm
};

struct cuda_library {
    void *module;
    cublasLtHandle_t handle;
#define DECLARE(name) __typeof__(&name) name;
    CUBLASLT_FUNCTIONS(DECLARE)
#undef DECLARE
    struct plan plan[PLANS];       // open addressing; a full table forgets
    struct algorithms *algorithms; // NULL: the heuristic's first is taken
    enum matmul_epilogues epilogues;
    struct cuda_gpu gpu;
};

/* What one call of cublasLtMatmul is told; all of it is freed again. */
struct call {
    const struct gemm *op;
    cublasLtEpilogue_t epilogue;
    struct tensor out;    // what the library makes: c, or what comes behind it
    struct tensor aux;    // {0}, or what its epilogue writes or reads beside it
    struct tensor vector; // {0}, or the bias, or a bias's gradient, overwritten
    size_t workspace_bytes;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
};

/* Fills module and functions. NOT_SUPPORTED: what was found, what is wanted, and the key. */
MUST_USE enum status cublaslt_library_open(struct cuda_library *lt);
void cublaslt_library_close(struct cuda_library *lt);

MUST_USE enum status cublaslt_check(const struct cuda_library *lt, const struct cuda_queue *queue,
                                    cublasStatus_t status, const char *call);

/* Puts the product on the queue: `d` is call's out, or as large a piece of memory. */
cublasStatus_t cublaslt_multiply(const struct cuda_library *lt, const struct cuda_queue *queue,
                                 const struct call *call, void *d, const cublasLtMatmulAlgo_t *algorithm,
                                 void *workspace);

/* The algorithm for this call: the heuristic's first; or, where choices are kept, what is kept for the shape,
 * or else the fastest of some, which is kept then. Tuning blocks the host, once for each shape. *refused,
 * where there is an epilogue that the library need not have: it has none; otherwise an error. */
MUST_USE enum status cublaslt_choose(const struct cuda_library *lt, struct cuda_queue *queue,
                                     struct call *call, const struct shape *shape, void *workspace,
                                     cublasLtMatmulAlgo_t *out, bool *refused);

/* What the choices of a shape are kept by. */
void cublaslt_write_key(const struct cuda_library *lt, const struct shape *shape,
                        char out[ALGORITHM_KEY_CHARS]);

/* Milliseconds of some runs of way(context), by the GPU's clock, after one that is not counted; negative: it
 * fails. */
MUST_USE enum status cublaslt_time(struct cuda_queue *queue, enum status (*way)(void *context), void *context,
                                   float *ms);

/* From the first element of a matrix to the last. */
size_t cublaslt_bytes_spanned(struct tensor c);

/* The op with its epilogue as one call of the library, by this algorithm. */
MUST_USE enum status cublaslt_run(struct cuda_queue *queue, const struct gemm *op,
                                  const cublasLtMatmulAlgo_t *algorithm);

/* Makes a plan for the op where there is none yet, which may block the host. *apart: it is to go in parts. */
MUST_USE enum status cublaslt_plan(struct cuda_queue *queue, const struct gemm *op,
                                   cublasLtMatmulAlgo_t *algorithm, bool *apart);

/* ---- gemm_epilogue.c ---- */

/* For device_choices(): which products have what comes behind them in one call. */
void cublaslt_say_epilogues(const struct cuda_library *lt, struct text *out);

/* Whether the library may be asked for what comes behind this product. */
bool cublaslt_has_epilogue(const struct gemm *op);

/* A product, then what comes behind it, by kernels of their own. */
MUST_USE enum status cublaslt_parts(struct cuda_queue *queue, const struct gemm *op);

/* Whether one call is slower than the parts: timed, or as it is kept. */
MUST_USE enum status cublaslt_is_slower(struct cuda_queue *queue, const struct gemm *op,
                                        const struct shape *shape, const cublasLtMatmulAlgo_t *algorithm,
                                        bool *slower);
