// SPDX-License-Identifier: Apache-2.0
/* Included first by every .cu file: the ops, and the kernel launch macro.
 *
 *     return LAUNCH(queue, norm_forward, dim3(rows), THREADS, 0, x, y);
 *     __global__ void norm_forward(...) { SHARED(float, line, 32); ... }
 *
 * LAUNCH is cudaLaunchKernelEx(). A test build compiles the same file as C++ with its own <cuda_runtime.h>
 * (tests/emulator/), where a launch runs the kernel thread by thread on the CPU; therefore kernels declare
 * shared memory with SHARED and DYNAMIC_SHARED, and inline PTX is confined to mma.h and wgmma.h.
 *
 * Caution: all threads of a block must reach the same barriers and shuffles. Return early only if no barrier
 * follows. */
#pragma once

#include <cuda_runtime.h>

#define _Noreturn [[noreturn]]
#define INLINE_EVERYWHERE __host__ __device__ static inline
extern "C" {
#include "kernels/cuda/runtime/cuda.h"
}

constexpr int WARP = 32;
constexpr int64_t MAX_GRID_Y = 65535; // and z

#ifdef __CUDACC__
#define PRAGMA_(text)             _Pragma(#text)
#define UNROLL(times)             PRAGMA_(unroll times)
#define UNROLL_ALL                PRAGMA_(unroll)
#define SHARED(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(type, name)                            \
    extern __shared__ __align__(16) unsigned char dynamic_[]; \
    type *const name = reinterpret_cast<type *>(dynamic_)

#endif

/* Returns the launch's own status. cudaGetLastError() would report the last failure of any call of this
 * thread, including cudaErrorNotReady from an event query. */
template <class... Parameters, class... Arguments>
enum status launch_kernel(struct cuda_queue *queue, const char *name, void (*kernel)(Parameters...),
                          dim3 grid, int threads, size_t shared_bytes, Arguments... arguments)
{
    enum { DEFAULT_SHARED_BYTES = 48 * 1024 };
    if (shared_bytes > DEFAULT_SHARED_BYTES) {
        cudaError_t error =
            cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
        if (error != cudaSuccess)
            return cuda_check(queue, error, name);
    }
    const cudaLaunchConfig_t config = {
        grid, dim3(static_cast<unsigned>(threads)), shared_bytes, queue->stream, nullptr, 0};
    return cuda_check(queue, cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

/* Launches and returns the status; `threads` in one dimension, a multiple of WARP. */
#define LAUNCH(queue, kernel, grid, threads, shared_bytes, ...) \
    launch_kernel(queue, #kernel, kernel, grid, threads, shared_bytes, __VA_ARGS__)

static inline int64_t blocks_of(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

/* Block size for `count` work items: full warps, at most `limit` threads. */
static inline int threads_for(int64_t count, int limit)
{
    return count >= limit ? limit : static_cast<int>(blocks_of(count, WARP)) * WARP;
}
