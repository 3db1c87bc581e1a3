// SPDX-License-Identifier: Apache-2.0
/* Replaces cuBLASLt by our own matrix multiplication, for its tests. */
#include "kernels/cuda/runtime/cuda.h"

#include <stdlib.h>

enum status cuda_library_open(const struct cuda_gpu *gpu, const struct device_options *options,
                              struct cuda_library **out)
{
    (void)gpu;
    (void)options;
    *out = NULL;
    return OK;
}

enum status cuda_library_check(const char *algorithms)
{
    (void)algorithms;
    return OK;
}

void cuda_library_choices(const struct cuda_library *library, struct text *out)
{
    (void)library;
    (void)out;
}

bool cuda_library_has_epilogues(const struct cuda_library *library)
{
    (void)library;
    return false;
}

void cuda_library_close(struct cuda_library *library)
{
    (void)library;
}

enum status cuda_gemm(struct cuda_queue *queue, const struct gemm *op)
{
    return cuda_gemm_tiled(queue, op);
}
