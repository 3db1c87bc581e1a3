// SPDX-License-Identifier: Apache-2.0
/* Counts the blocking CUDA calls of each step, for tools/gpu_check: a program that is linked with this and
 * with --wrap for the calls below (meson.build) prints them after each step, on a GPU as on the emulator.
 *
 *     load ─ 0F0 ─ 0B0 ─ ... ─ reduce ─ update | loss, norm, statistics of the ranks | load ─ ...
 *     inside: the host must not block          | at the end: one wait is intended
 *
 * A step begins at the profiler range "load"; the current range is the action that made a call. Querying
 * again after not-ready, and copying from or to memory that CUDA did not allocate in this program, also
 * count as blocking.
 *
 * Caution: waits inside cuBLASLt, cuDNN and the driver are not calls of ours. With COUNT_HOLD_S=2, all
 * streams are therefore held from the third step on, until the host has submitted the whole step: a wait
 * for them inside the step blocks until the hold times out after that many seconds, which is reported. (A
 * GPU queues about a thousand launches, beyond which the host blocks anyway: use it only for steps with
 * fewer.) */
#include "kernels/cuda/runtime/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_CALLS = 16, MAX_ALLOCATIONS = 256, MAX_STREAMS = 64, HELD_FROM = 3, RANGE_CHARS = 24 };
enum phase { BEFORE, INSIDE, AT_THE_END, PHASES };

struct call {
    const char *name;
    int count;
    char range[RANGE_CHARS]; // in or after which it was first made
};

struct allocation {
    const char *data;
    size_t bytes;
};

struct count {
    int step;
    enum phase phase;
    struct call call[PHASES][MAX_CALLS];
    const void *not_ready; // last event queried that was not ready
    struct allocation allocation[MAX_ALLOCATIONS];
    cudaStream_t stream[MAX_STREAMS];
    // Guarded by the lock: accessed by the GPU's streams.
    pthread_mutex_t lock;
    pthread_cond_t released;
    bool holds;
    char range[RANGE_CHARS], stalled[RANGE_CHARS]; // current range; range in which a hold timed out
};

/* Per rank, which is a thread. */
static _Thread_local struct count mine = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                          .released = PTHREAD_COND_INITIALIZER};

static void count_call(const char *name)
{
    struct call *call = mine.call[mine.phase], *end = call + MAX_CALLS;
    while (call->name != NULL && strcmp(call->name, name) != 0)
        CHECK(++call < end);
    if (call->count++ == 0)
        memcpy(call->range, mine.range, sizeof call->range);
    call->name = name;
}

/* ---- steps ---- */

static double hold_s(void)
{
    const char *seconds = getenv("COUNT_HOLD_S");
    return seconds != NULL ? strtod(seconds, NULL) : 0.0;
}

/* Runs on a stream: blocks it until the host releases the hold. */
static void hold(void *context)
{
    struct count *count = context;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    const double end_s = (double)limit.tv_nsec * 1e-9 + hold_s();
    limit.tv_sec += (time_t)end_s;
    limit.tv_nsec = (long)((end_s - (double)(time_t)end_s) * 1e9);
    pthread_mutex_lock(&count->lock);
    while (count->holds) {
        if (pthread_cond_timedwait(&count->released, &count->lock, &limit) == 0)
            continue;
        memcpy(count->stalled, count->range, sizeof count->stalled);
        count->holds = false;
    }
    pthread_mutex_unlock(&count->lock);
}

static void print_calls(const struct call *call, bool first)
{
    for (int i = 0; i < MAX_CALLS && call[i].name != NULL; i++, first = false)
        printf("%s%s %d (%s)", first ? " " : ", ", call[i].name, call[i].count, call[i].range);
    printf("%s", first ? " nothing" : "");
}

static void print_step(void)
{
    size_t left = 0, all = 0;
    MUST(cuda_check(NULL, cudaMemGetInfo(&left, &all), "cudaMemGetInfo"));
    pthread_mutex_lock(&mine.lock); // guards `stalled`
    printf("step %d blocking calls: inside", mine.step);
    if (mine.stalled[0] != '\0')
        printf(" a wait in a library (%s)", mine.stalled);
    print_calls(mine.call[INSIDE], mine.stalled[0] == '\0');
    printf("; at the end");
    print_calls(mine.call[AT_THE_END], true);
    printf("; %zu of %zu bytes free\n", left, all);
    mine.stalled[0] = '\0';
    pthread_mutex_unlock(&mine.lock);
}

static void begin_step(void)
{
    if (mine.step > 0)
        print_step();
    memset(mine.call, 0, sizeof mine.call);
    mine.phase = INSIDE;
    if (++mine.step < HELD_FROM || hold_s() <= 0.0)
        return;
    pthread_mutex_lock(&mine.lock);
    mine.holds = true;
    pthread_mutex_unlock(&mine.lock);
    for (int i = 0; i < MAX_STREAMS; i++)
        if (mine.stream[i] != NULL)
            MUST(cuda_check(NULL, cudaLaunchHostFunc(mine.stream[i], hold, &mine), "cudaLaunchHostFunc"));
}

/* A wrapper of a CUDA call, and the real one. */
#define CALL(name, returns, parameters)                         \
    returns real_##name parameters __asm__("__real_" #name);    \
    returns counted_##name parameters __asm__("__wrap_" #name); \
    returns counted_##name parameters

CALL(cuda_range, void, (const char *name))
{
    real_cuda_range(name);
    pthread_mutex_lock(&mine.lock);
    if (name != NULL) {
        snprintf(mine.range, sizeof mine.range, "%s", name);
    } else if (strcmp(mine.range, "update") == 0) {
        mine.phase = AT_THE_END;
        mine.holds = false;
        pthread_cond_broadcast(&mine.released);
    }
    pthread_mutex_unlock(&mine.lock);
    if (name != NULL && strcmp(name, "load") == 0)
        begin_step();
}

/* ---- waits ---- */

CALL(cudaStreamSynchronize, cudaError_t, (cudaStream_t stream))
{
    count_call("cudaStreamSynchronize");
    return real_cudaStreamSynchronize(stream);
}

CALL(cudaEventSynchronize, cudaError_t, (cudaEvent_t event))
{
    count_call("cudaEventSynchronize");
    return real_cudaEventSynchronize(event);
}

static cudaError_t queried(const char *name, const void *what, cudaError_t answer)
{
    if (answer == cudaErrorNotReady && mine.not_ready == what)
        count_call(name);
    mine.not_ready = answer == cudaErrorNotReady ? what : NULL;
    return answer;
}

CALL(cudaEventQuery, cudaError_t, (cudaEvent_t event))
{
    return queried("cudaEventQuery", event, real_cudaEventQuery(event));
}

CALL(cudaStreamQuery, cudaError_t, (cudaStream_t stream))
{
    return queried("cudaStreamQuery", stream, real_cudaStreamQuery(stream));
}

static bool is_ours(const void *data)
{
    for (int i = 0; i < MAX_ALLOCATIONS; i++)
        if (mine.allocation[i].data != NULL &&
            (uintptr_t)data - (uintptr_t)mine.allocation[i].data < mine.allocation[i].bytes)
            return true;
    return false;
}

CALL(cudaMemcpyAsync, cudaError_t,
     (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream))
{
    if (!is_ours(to) || !is_ours(from))
        count_call("cudaMemcpyAsync with memory that is not pinned");
    return real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}

/* ---- memory ---- */

static cudaError_t allocated(const char *name, cudaError_t error, const void *data, size_t bytes)
{
    int i = 0;
    count_call(name);
    while (error == cudaSuccess && mine.allocation[i].data != NULL)
        CHECK(++i < MAX_ALLOCATIONS);
    if (error == cudaSuccess)
        mine.allocation[i] = (struct allocation){data, bytes};
    return error;
}

static void freed(const char *name, const void *data)
{
    count_call(name);
    for (int i = 0; i < MAX_ALLOCATIONS; i++)
        if (mine.allocation[i].data == data)
            mine.allocation[i] = (struct allocation){0};
}

CALL(cudaMalloc, cudaError_t, (void **out, size_t bytes))
{
    const cudaError_t error = real_cudaMalloc(out, bytes);
    return allocated("cudaMalloc", error, *out, bytes);
}

CALL(cudaMallocHost, cudaError_t, (void **out, size_t bytes))
{
    const cudaError_t error = real_cudaMallocHost(out, bytes);
    return allocated("cudaMallocHost", error, *out, bytes);
}

CALL(cudaFree, cudaError_t, (void *data))
{
    freed("cudaFree", data);
    return real_cudaFree(data);
}

CALL(cudaFreeHost, cudaError_t, (void *data))
{
    freed("cudaFreeHost", data);
    return real_cudaFreeHost(data);
}

CALL(cudaGraphInstantiate, cudaError_t, (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags))
{
    count_call("cudaGraphInstantiate");
    return real_cudaGraphInstantiate(out, graph, flags);
}

/* ---- streams, for the hold ---- */

static void replace_stream(cudaStream_t old, cudaStream_t stream)
{
    int i = 0;
    while (mine.stream[i] != old)
        CHECK(++i < MAX_STREAMS);
    mine.stream[i] = stream;
}

CALL(cudaStreamCreateWithFlags, cudaError_t, (cudaStream_t * out, unsigned flags))
{
    const cudaError_t error = real_cudaStreamCreateWithFlags(out, flags);
    if (error == cudaSuccess)
        replace_stream(NULL, *out);
    return error;
}

CALL(cudaStreamDestroy, cudaError_t, (cudaStream_t stream))
{
    replace_stream(stream, NULL);
    return real_cudaStreamDestroy(stream);
}
