// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

void cpu_gemm(struct device *device, const struct gemm *op)
{
    (void)device;
    int64_t m = op->c.dim[0], n = op->c.dim[1];
    blas_sgemm(&(struct blas_panel){.transpose_a = op->transpose_a,
                                    .transpose_b = op->transpose_b,
                                    .accumulate = op->accumulate,
                                    .m = m,
                                    .n = n,
                                    .k = op->transpose_a ? op->a.dim[0] : op->a.dim[1],
                                    .a = op->a.data,
                                    .b = op->b.data,
                                    .c = op->c.data,
                                    .lda = op->a.stride[0],
                                    .ldb = op->b.stride[0],
                                    .ldc = op->c.stride[0]});
}
