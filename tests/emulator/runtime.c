// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/include/cuda_runtime_api.h"

#include "tests/emulator/emulator.h"

#include <stdlib.h>
#include <string.h>

struct CUstream_st {
    struct emulator *emulator;
};
struct CUevent_st {
    int recorded;
};

struct emulator *emulator_of(cudaStream_t stream)
{
    return stream->emulator;
}

static cudaError_t result_of(const char *call, cudaError_t when_failing)
{
    const char *fails = getenv("EMULATOR_FAIL");
    return fails != NULL && strcmp(fails, call) == 0 ? when_failing : cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
        return "device not ready";
    }
    return "?";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return result_of("cudaGetDeviceCount", cudaErrorInsufficientDriver);
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    if (result_of("cudaDeviceGetAttribute", cudaErrorNoDevice) != cudaSuccess)
        *value = 7; // an old one
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = (size_t)1 << 30;
    return cudaSuccess;
}

static cudaError_t take(void **out, size_t bytes, const char *call)
{
    *out = NULL;
    if (result_of(call, cudaErrorMemoryAllocation) != cudaSuccess || posix_memalign(out, 256, bytes) != 0)
        return cudaErrorMemoryAllocation;
    memset(*out, 0xff, bytes);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    return take(out, bytes, "cudaMalloc");
}

cudaError_t cudaFree(void *data)
{
    free(data);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return take(out, bytes, "cudaMallocHost");
}

cudaError_t cudaFreeHost(void *data)
{
    free(data);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return cudaErrorMemoryAllocation;
    (*out)->emulator = emulator_create();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulator_destroy(stream->emulator);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return result_of("cudaStreamSynchronize", cudaErrorInvalidValue);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)stream;
    (void)flags;
    return event->recorded ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)stream;
    event->recorded = 1;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return event->recorded ? result_of("cudaEventSynchronize", cudaErrorInvalidValue) : cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    (void)stream;
    memcpy(to, from, bytes);
    return result_of("cudaMemcpyAsync", cudaErrorInvalidValue);
}
