// SPDX-License-Identifier: Apache-2.0
/* Launch validation, and the last error. The limits are those of EMULATOR_CAPABILITY (CUDA C++ Programming
 * Guide, "Technical Specifications per Compute Capability"). */
#include "tests/emulator/include/cuda_runtime_api.h"

#include "base/status.h"
#include "tests/emulator/gpu/emulator.h"

#include <stdlib.h>

enum { MAX_Y_AND_Z = 65535, MAX_THREADS = 1024, MAX_KERNELS = 128 };

static _Thread_local cudaError_t last_error;

cudaError_t emulator_returns(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

/* cudaFuncSetAttribute() calls for this thread's GPU: they are per GPU. */
static _Thread_local struct {
    const void *kernel;
    int device;
    size_t bytes;
} asked[MAX_KERNELS];

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    int i = 0;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value > emulator_most_shared_bytes())
        return emulator_returns(cudaErrorInvalidValue);
    while (asked[i].kernel != NULL && (asked[i].kernel != kernel || asked[i].device != emulator_device()))
        CHECK(++i < MAX_KERNELS);
    asked[i].kernel = kernel;
    asked[i].device = emulator_device();
    asked[i].bytes = (size_t)value;
    return cudaSuccess;
}

size_t emulator_most_shared_bytes(void)
{
    const char *capability = getenv("EMULATOR_CAPABILITY");
    if (capability == NULL || strtod(capability, NULL) < 8.05)
        return (size_t)(capability == NULL ? 227 : 163) * 1024;
    return (size_t)(strtod(capability, NULL) < 8.95 ? 99 : 227) * 1024;
}

static size_t shared_bytes_of(const void *kernel)
{
    for (int i = 0; i < MAX_KERNELS && asked[i].kernel != NULL; i++)
        if (asked[i].kernel == kernel && asked[i].device == emulator_device())
            return asked[i].bytes > EMULATOR_SHARED_BYTES ? asked[i].bytes : EMULATOR_SHARED_BYTES;
    return EMULATOR_SHARED_BYTES;
}

cudaError_t emulator_check_launch(const void *kernel, struct emulator_index grid,
                                  struct emulator_index threads, size_t shared_bytes)
{
    bool good = grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 && grid.y <= MAX_Y_AND_Z && grid.z >= 1 &&
                grid.z <= MAX_Y_AND_Z && threads.x >= 1 && threads.x <= MAX_THREADS && threads.y == 1 &&
                threads.z == 1;
    if (!good)
        return emulator_returns(cudaErrorInvalidConfiguration);
    if (emulator_fails("cudaLaunchKernelEx")) // code is loaded at the first launch
        return emulator_returns(cudaErrorMemoryAllocation);
    return emulator_returns(shared_bytes <= shared_bytes_of(kernel) ? cudaSuccess : cudaErrorInvalidValue);
}

/* A host function in stream order. */
struct host_call {
    void (*function)(void *context);
    void *context;
};

static void run_host_call(cudaStream_t stream, void *context)
{
    (void)stream;
    const struct host_call *call = context;
    call->function(call->context);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void *context), void *context)
{
    struct host_call *call = malloc(sizeof *call);
    CHECK(call != NULL);
    *call = (struct host_call){function, context};
    emulator_enqueue(stream, "cudaLaunchHostFunc", run_host_call, call, 0);
    return cudaSuccess;
}
