// SPDX-License-Identifier: Apache-2.0
/* What the cpu's gemm needs of a BLAS: one panel, on the calling thread alone (gemm.c says why). Only a
 * benchmark asks for more threads, to learn what the library reaches by itself. */
#pragma once

#include "kernels/tensor.h"

/* c[m, n] = op(a) op(b), added to c when accumulate. Row-major; lda, ldb, ldc are row strides. */
struct blas_panel {
    bool transpose_a, transpose_b, accumulate;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    // For blas_bf16() alone:
    enum dtype c_type; // bf16 or f32
    const void *bias;  // bf16[n], added before c is rounded; NULL: none
};
/* Before the calls below. A library that crashes when the address space is exhausted then ends the process
 * with a message instead. */
void blas_open(void);
/* fp32 throughout. */
void blas_sgemm(const struct blas_panel *panel, int threads);
/* bf16 a and b, added up in fp32, rounded once. k > 0. Only where blas_has_bf16(): in this library, and
 * faster than fp32 on this processor. */
bool blas_has_bf16(void);
void blas_bf16(const struct blas_panel *panel, int threads);
