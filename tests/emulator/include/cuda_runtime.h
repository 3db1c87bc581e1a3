// SPDX-License-Identifier: Apache-2.0
/* The subset of CUDA C++ that kernels/cuda/ uses, for a C++ compiler. */
#pragma once

#include "tests/emulator/gpu/emulator.h"
#include "tests/emulator/include/cuda_math.h"
#include "tests/emulator/include/cuda_runtime_api.h"

#include <math.h>
#include <new>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

#define threadIdx (*emulator_thread_index())
#define blockIdx  (*emulator_block_index())
#define blockDim  (*emulator_block_size())
#define gridDim   (*emulator_grid_size())

#define UNROLL(times)
#define UNROLL_ALL

#define __syncthreads() emulator_barrier(__FILE__, __LINE__)
#define __syncwarp()    ((void)emulator_shuffle(0, 0, __FILE__, __LINE__))

template <class T> T emulated_shuffle(T value, unsigned from, const char *file, int line)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "CUDA shuffles values of 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulator_shuffle(bits, from, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}
#define __shfl_sync(mask, value, lane) emulated_shuffle(value, (unsigned)(lane), __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, other) \
    emulated_shuffle(value, threadIdx.x % 32 ^ (unsigned)(other), __FILE__, __LINE__)

#define SHARED(type, name, count)      \
    static const char name##_site = 0; \
    type *const name = static_cast<type *>(emulator_shared(&name##_site, sizeof(type) * (count)))
#define DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(emulator_shared(nullptr, 0))

/* A launch in a stream: its configuration and thread function. */
template <class Body> struct emulated_launch {
    const char *name;
    dim3 grid;
    unsigned threads;
    size_t shared_bytes;
    Body body;

    static void thread(const void *body)
    {
        (*static_cast<const Body *>(body))();
    }
    static void run(cudaStream_t stream, void *context)
    {
        const auto *launch = static_cast<const emulated_launch *>(context);
        const dim3 &grid = launch->grid;
        emulator_launch(emulator_of(stream), launch->name, {grid.x, grid.y, grid.z}, launch->threads,
                        launch->shared_bytes, thread, &launch->body);
        emulator_advance_clock(stream, static_cast<int64_t>(grid.x) * grid.y * grid.z * launch->threads);
    }
};

/* The field names differ: CUDA's are macros here. */
struct cudaLaunchConfig_t {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    const void *attributes;
    unsigned attribute_count;
};

/* In CUDA a launch has no name: here it is the argument of launch_kernel() in launch.h. */
#define cudaLaunchKernelEx(config, kernel, ...) emulated_launch_kernel(name, config, kernel, __VA_ARGS__)

template <class... Parameters, class... Arguments>
cudaError_t emulated_launch_kernel(const char *name, const cudaLaunchConfig_t *config,
                                   void (*kernel)(Parameters...), Arguments... arguments)
{
    const dim3 &grid = config->grid, &block = config->block;
    cudaError_t error =
        emulator_check_launch(reinterpret_cast<const void *>(kernel), {grid.x, grid.y, grid.z},
                              {block.x, block.y, block.z}, config->shared_bytes);
    if (error != cudaSuccess)
        return error;
    auto body = [=] { kernel(static_cast<Parameters>(arguments)...); };
    using launch = emulated_launch<decltype(body)>;
    void *memory = nullptr; // tensor maps among the arguments are 64-byte aligned
    if (posix_memalign(&memory, alignof(launch) > sizeof(void *) ? alignof(launch) : sizeof(void *),
                       sizeof(launch)) != 0)
        abort();
    auto *made = new (memory) launch{name, grid, block.x, config->shared_bytes, body};
    emulator_enqueue(config->stream, name, launch::run, memory, EMULATOR_COMPARABLE(made));
    return cudaSuccess;
}
