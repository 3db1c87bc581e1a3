// SPDX-License-Identifier: Apache-2.0
/* A kernel that writes one word past its shared memory: a build with AddressSanitizer must detect it. */
#include "kernels/cuda/runtime/launch.h"

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
