// SPDX-License-Identifier: Apache-2.0
/* The BLAS interface of the cpu's gemm: one panel, on the calling thread (gemm.c explains why). Only a
 * benchmark uses more threads, to measure the library alone. */
#pragma once

#include "kernels/tensor.h"

/* c[m, n] = op(a) op(b), added to c when accumulate. Row-major; lda, ldb, ldc are row strides. */
struct blas_panel {
    bool transpose_a, transpose_b, accumulate;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    // For blas_bf16() only:
    enum dtype c_type; // bf16 or f32
    const void *bias;  // bf16[n], added before c is rounded; NULL: none
};
/* Must precede the calls below. Makes a library that crashes on address-space exhaustion end the process with
 * a message instead. */
void blas_open(void);
/* fp32 throughout. */
void blas_sgemm(const struct blas_panel *panel, int threads);
/* bf16 a and b, fp32 accumulation, rounded once. k > 0. Requires blas_has_bf16(): supported by the library,
 * and faster than fp32 on this processor. */
bool blas_has_bf16(void);
void blas_bf16(const struct blas_panel *panel, int threads);
