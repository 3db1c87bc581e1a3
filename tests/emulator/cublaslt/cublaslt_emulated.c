// SPDX-License-Identifier: Apache-2.0
/* Library loading of cuBLASLt, linked to the emulated one. */
#include "kernels/cuda/matmul/cublaslt.h"

enum status cublaslt_library_open(struct cuda_library *lt)
{
#define ROW(name) lt->name = name;
    CUBLASLT_FUNCTIONS(ROW)
#undef ROW
    return OK;
}

void cublaslt_library_close(struct cuda_library *lt)
{
    (void)lt;
}
