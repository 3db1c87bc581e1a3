// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

#include <dnnl.h>

/* oneDNN threads with libgomp, whose number of threads belongs to the calling thread. Declared here
 * because omp.h comes with a compiler's own OpenMP, which need not be installed. */
void omp_set_num_threads(int threads);

void blas_sgemm(const struct blas_panel *p, int threads)
{
    omp_set_num_threads(threads);
    dnnl_status_t status =
        dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1.0F, p->a,
                   p->lda, p->b, p->ldb, p->accumulate ? 1.0F : 0.0F, p->c, p->ldc);
    if (status != dnnl_success)
        die(__FILE__, __LINE__, "dnnl_sgemm", "oneDNN says %d", (int)status);
}

const char *cpu_blas_name(void)
{
    return "oneDNN";
}

const char *cpu_blas_warning(void)
{
    return NULL;
}
