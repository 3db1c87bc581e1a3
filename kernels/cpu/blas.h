// SPDX-License-Identifier: Apache-2.0
/* What the cpu's gemm needs of a BLAS: one panel, on the calling thread alone (gemm.c says why). Only a
 * benchmark asks for more threads, to learn what the library reaches by itself. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* c[m, n] = op(a) op(b), added to c when accumulate. Row-major; lda, ldb, ldc are row strides. */
struct blas_panel {
    bool transpose_a, transpose_b, accumulate;
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
};
void blas_sgemm(const struct blas_panel *panel, int threads);
