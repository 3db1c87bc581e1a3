// SPDX-License-Identifier: Apache-2.0
/* The part of CUDA's runtime that the cuda device uses, for a GPU that is the emulator: its memory is the
 * host's, and a stream runs at once, or, with the environment variable EMULATOR_STREAMS=late, as far as
 * somebody synchronises or asks. Names and values are CUDA's, so that kernels/cuda/ is compiled as it is.
 *
 * With EMULATOR_MEMORY=guarded device memory can be reached only while something of a stream runs: a host
 * that follows a device's address ends at once, as on a GPU. (CPU transports do follow it: for one rank.)
 *
 * EMULATOR_GPUS=N gives the machine N GPUs; a thread has one at a time, as a rank does. What is on its
 * streams moves while that thread calls: a stream stands still at a message of NCCL's (nccl.c)
 * until its partners have come to theirs.
 *
 * EMULATOR_CAPABILITY=8.0 makes them such GPUs; without it they are of 9.0, with the instructions of wgmma.h.
 *
 * The environment variable EMULATOR_FAIL=CALL makes that call fail (faults.c), for tests of
 * messages: cudaMalloc, cudaGetDeviceCount for a machine without a GPU (EMULATOR_DRIVER=12040: with a driver
 * of CUDA 12.4, or 0: with none), or cudaGetDeviceProperties for one whose last is another.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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
/* As in CUDA, the last of this thread's calls that returned anything but success, "not ready" too. */
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
/* Puts run(stream, context) on the stream; `context` is malloc's, and is freed after it. `name` is a literal.
 * The first `bytes` of the context, which have no padding that is unset, say what it does; 0: they do not. */
void emulator_put(cudaStream_t stream, const char *name, void (*run)(cudaStream_t stream, void *context),
                  void *context, size_t bytes);
/* Whether two graphs are not the same calls with the same arguments, and in what they differ. */
bool emulator_graphs_differ(cudaGraph_t a, cudaGraph_t b, char *why, size_t chars);
/* Sets the padding of *object to zero where the compiler can; bytes of it that can be compared then. */
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

/* What CUDA refuses: a grid or a block that is empty or too large, and more dynamic shared memory than this
 * thread's GPU was asked for with cudaFuncSetAttribute(). */
struct emulator_index;
cudaError_t emulator_check_launch(const void *kernel, struct emulator_index grid,
                                  struct emulator_index threads, size_t shared_bytes);

/* By a stream's own clock, which cudaEventElapsedTime() reads: what is running now took so long. */
void emulator_pass_time(cudaStream_t stream, int64_t ns);

/* Something that needs partners: it is asked to move on, says whether it has, and returns true when it is
 * done; the stream stands still until then. say() writes what it waits for. */
struct emulator_message {
    bool (*move)(struct emulator_message *message, bool *moved);
    void (*say)(const struct emulator_message *message, FILE *to);
};
/* Takes `message`, which is freed after it. */
void emulator_put_message(cudaStream_t stream, struct emulator_message *message);
/* Something has happened that another thread may wait for; and sleeping until then, or for a moment. Whoever
 * sees nothing move for EMULATOR_PATIENCE_MS (60000) ends the program, and says what its streams wait for. */
void emulator_news(void);
void emulator_rest(void);
int emulator_device(void); // this thread's

/* What this thread has asked of its GPU that makes a host wait, ever. */
struct emulator_calls {
    int syncs;       // of a stream or an event
    int polls;       // times it has asked for an event again that was not passed when it asked last
    int allocations; // of memory, pinned too, and its giving back
    int pieces;      // of device memory that were asked for
    int launches;    // of kernels, libraries and copies, each by itself
    int graphs;      // of graphs
};
struct emulator_calls emulator_calls(void);
bool emulator_fails(const char *call); // as EMULATOR_FAIL says
/* `error`, which cudaGetLastError() will know of. */
cudaError_t emulator_returns(cudaError_t error);

#ifdef __cplusplus
}
#endif
