// SPDX-License-Identifier: Apache-2.0
/* A kernel that writes one word past its shared memory: a build with AddressSanitizer must detect it. */
#include "kernels/cuda/runtime/launch.h"

/* The device's own is not linked, so that its kernels need not be compiled. */
enum status cuda_check(const struct cuda_queue *queue, cudaError_t error, const char *call)
{
    (void)queue, (void)call;
    return error == cudaSuccess ? OK : NOT_SUPPORTED;
}

static void overrun(unsigned by)
{
    SHARED(float, line, 32);
    line[threadIdx.x + by] = 1.0F;
}

int main()
{
    struct cuda_queue queue = {};
    cudaStreamCreateWithFlags(&queue.stream, 0);
    enum status status = LAUNCH(&queue, overrun, dim3(1), 32, 0, 1U);
    cudaStreamDestroy(queue.stream);
    return status == OK ? 0 : 2;
}
