// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>

/* The OpenMP build of OpenBLAS asks libgomp, whose number of threads belongs to the calling thread;
 * the other builds have one number for the process. Declared here because omp.h comes with a
 * compiler's own OpenMP, which need not be installed. */
void omp_set_num_threads(int threads);

void blas_sgemm(const struct blas_panel *p)
{
    omp_set_num_threads(1);
    cblas_sgemm(CblasRowMajor, p->transpose_a ? CblasTrans : CblasNoTrans,
                p->transpose_b ? CblasTrans : CblasNoTrans, (blasint)p->m, (blasint)p->n, (blasint)p->k, 1.0F,
                p->a, (blasint)p->lda, p->b, (blasint)p->ldb, p->accumulate ? 1.0F : 0.0F, p->c,
                (blasint)p->ldc);
}

const char *cpu_blas_name(void)
{
    return "OpenBLAS";
}

const char *cpu_blas_warning(void)
{
    if (getenv("OPENBLAS_CORETYPE") != NULL)
        return "OPENBLAS_CORETYPE in the environment makes OpenBLAS use another processor's kernels: unset "
               "it";
    if (getenv("OPENBLAS_L2_SIZE") != NULL)
        return "OPENBLAS_L2_SIZE in the environment makes OpenBLAS cut matrices for another cache: unset it";
    return NULL;
}
