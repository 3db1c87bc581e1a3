// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/matmul/blas.h"
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <string.h>

/* The OpenMP build of OpenBLAS uses libgomp, whose thread count is per calling thread; the other builds have
 * one per process. Declared here because omp.h belongs to a compiler's OpenMP package, which may not be
 * installed. */
void omp_set_num_threads(int threads);

void blas_open(void)
{
}

void blas_sgemm(const struct blas_panel *p, int threads)
{
    omp_set_num_threads(threads);
    cblas_sgemm(CblasRowMajor, p->transpose_a ? CblasTrans : CblasNoTrans,
                p->transpose_b ? CblasTrans : CblasNoTrans, (blasint)p->m, (blasint)p->n, (blasint)p->k, 1.0F,
                p->a, (blasint)p->lda, p->b, (blasint)p->ldb, p->accumulate ? 1.0F : 0.0F, p->c,
                (blasint)p->ldc);
}

bool blas_has_bf16(void)
{
    return false; // not every build of OpenBLAS has a bf16 gemm
}

void blas_bf16(const struct blas_panel *panel, int threads)
{
    (void)panel;
    (void)threads;
    die(__FILE__, __LINE__, "blas_bf16", "not supported with OpenBLAS");
}

const char *cpu_blas_name(void)
{
    return "OpenBLAS";
}

static bool is_one_of(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

/* OpenBLAS selects kernels by CPU model, or by OPENBLAS_CORETYPE. A wrong value, or a CPU newer than the
 * library, selects kernels for narrower vectors. */
const char *cpu_blas_warning(void)
{
#if defined(__x86_64__)
    static const char *const wide[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    static const char *const middle[] = {"Haswell", "Zen", "Excavator"};
    const char *core = openblas_get_corename();
    bool is_wide = is_one_of(core, wide, sizeof wide / sizeof *wide);
    bool is_middle = is_one_of(core, middle, sizeof middle / sizeof *middle);
    if (__builtin_cpu_supports("avx512f") && !is_wide)
        return "OpenBLAS runs two to six times slower than this processor can: it uses kernels without "
               "AVX-512; "
               "unset OPENBLAS_CORETYPE, or set it to SkylakeX";
    if (__builtin_cpu_supports("avx2") && !is_wide && !is_middle)
        return "OpenBLAS runs several times slower than this processor can: it uses kernels without AVX2; "
               "unset "
               "OPENBLAS_CORETYPE, or set it to Haswell";
#endif
    return NULL;
}
