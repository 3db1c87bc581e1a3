// SPDX-License-Identifier: Apache-2.0
/* The subset of the CUDA runtime that the cuda device uses, for the emulated GPU: its memory is host memory,
 * and a stream runs at once, or, with the environment variable EMULATOR_STREAMS=late, when it is synchronized
 * or queried. Names and values are CUDA's, so that kernels/cuda/ compiles unchanged.
 *
 * With EMULATOR_MEMORY=guarded, device memory is accessible only while a stream runs: a host that
 * dereferences a device address fails at once, as on a GPU. (CPU transports do so: one rank only.)
 *
 * EMULATOR_GPUS=N gives the machine N GPUs; a thread has one at a time, as a rank does. Its streams progress
 * during calls of that thread: a stream blocks at an NCCL message (nccl.c) until its peers have reached
 * theirs.
 *
 * EMULATOR_SLOW="2 20": the emulated clock of GPU 2 is 20 % slower; not with EMULATOR_CLOCK=host.
 *
 * EMULATOR_CAPABILITY=8.0 sets their compute capability; the default is 9.0, with the instructions of
 * wgmma.h.
 *
 * The environment variable EMULATOR_FAIL=CALL makes that call fail (faults.c), to test error messages:
 * cudaMalloc, cudaGetDeviceCount for a machine without a GPU (EMULATOR_DRIVER=12040: with a driver for CUDA
 * 12.4, or 0: without), or cudaGetDeviceProperties for a machine whose last GPU is of another kind. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CUDART_VERSION 13000

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalState = 401,
    cudaErrorNotReady = 600,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };

enum {
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventDisableTiming = 2,
    cudaEventBlockingSync = 1
};
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1
};
enum { cudaEnableDefault = 0 };

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

struct cudaDeviceProp {
    char name[256];
};

const char *cudaGetErrorString(cudaError_t error);
/* As in CUDA, the last unsuccessful status of this thread's calls, including "not ready". */
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
cudaError_t cudaDeviceGetPCIBusId(char *out, int chars, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *answer);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *data);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaFreeHost(void *data);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void *context), void *context);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value);

struct emulator;
struct emulator *emulator_of(cudaStream_t stream);
/* Enqueues run(stream, context); `context` is from malloc, and is freed afterwards. `name` is a literal. The
 * first `bytes` of the context, without uninitialized padding, identify the call; 0: they do not. */
void emulator_enqueue(cudaStream_t stream, const char *name, void (*run)(cudaStream_t stream, void *context),
                      void *context, size_t bytes);
/* Whether two graphs differ in calls or arguments, and in which. */
bool emulator_graphs_differ(cudaGraph_t a, cudaGraph_t b, char *why, size_t chars);
/* Zeroes the padding of *object if the compiler can; returns the number of comparable bytes. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define EMULATOR_COMPARES           true
#define EMULATOR_COMPARABLE(object) (__builtin_clear_padding(object), sizeof *(object))
#endif
#endif
#ifndef EMULATOR_COMPARES
#define EMULATOR_COMPARES           false
#define EMULATOR_COMPARABLE(object) ((void)(object), (size_t)0)
#endif

/* Checks what CUDA rejects: an empty or too large grid or block, and more dynamic shared memory than
 * cudaFuncSetAttribute() has set for this thread's GPU. */
struct emulator_index;
cudaError_t emulator_check_launch(const void *kernel, struct emulator_index grid,
                                  struct emulator_index threads, size_t shared_bytes);

/* Advances a stream's clock, which cudaEventElapsedTime() reads, by the duration of the current entry. */
void emulator_advance_clock(cudaStream_t stream, int64_t ns);

/* An entry that needs peers: it is polled for progress, and returns true when it is complete; the stream
 * blocks until then. describe() describes what it waits for. */
struct emulator_message {
    bool (*move)(struct emulator_message *message, bool *moved);
    void (*describe)(const struct emulator_message *message, FILE *to);
};
/* The injected fault of a kernel that never ends, before the next launch; NULL: none.
 * *is_stuck: this GPU has it. */
struct emulator_message *emulator_stuck(bool *is_stuck);
/* Takes ownership of `message`. */
void emulator_enqueue_message(cudaStream_t stream, struct emulator_message *message);
/* Signals an event that another thread may wait for; and sleeps until then, or briefly. A thread without
 * progress for EMULATOR_PATIENCE_MS (60000) ends the program, and prints what its streams wait for. */
void emulator_notify(void);
void emulator_sleep(void);
int emulator_device(void); // of this thread

/* Total number of this thread's blocking calls. */
struct emulator_calls {
    int syncs;         // of a stream or an event
    int polls;         // repeated queries of an event that was not ready before
    int allocations;   // allocating and freeing memory, including pinned
    int device_allocs; // allocations of device memory
    int launches;      // individual launches of kernels, libraries and copies
    int graphs;        // of graphs
};
struct emulator_calls emulator_calls(void);
bool emulator_fails(const char *call); // according to EMULATOR_FAIL
/* Records `error` for cudaGetLastError(), and returns it. */
cudaError_t emulator_returns(cudaError_t error);

#ifdef __cplusplus
}
#endif
