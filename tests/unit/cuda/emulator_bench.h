// SPDX-License-Identifier: Apache-2.0
/* A queue without a device, with a chosen thread order: enough to launch kernels. */
#pragma once

#include "kernels/cuda/runtime/launch.h"

struct bench {
    struct cuda_queue queue;

    explicit bench(const char *order) : queue()
    {
        cudaStreamCreateWithFlags(&queue.stream, 0);
        emulator_order(emulator_of(queue.stream), order);
    }
    ~bench()
    {
        cudaStreamDestroy(queue.stream);
    }
};
