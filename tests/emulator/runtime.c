// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/include/cuda_runtime_api.h"

#include "base/status.h"
#include "tests/emulator/emulator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What is on a stream: a call, the record of an event, or a wait for one. */
struct entry {
    struct entry *next;
    void (*run)(cudaStream_t stream, void *context);
    void *context;
    cudaEvent_t record, wait;
    uint64_t number; // of the record that a wait is for
};

struct CUstream_st {
    struct emulator *emulator;
    bool late;
    struct entry *first, **last;
};
struct CUevent_st {
    cudaStream_t stream; // of the last record
    uint64_t recorded, passed;
    int held; // by its owner, and by waits on streams
};

struct emulator *emulator_of(cudaStream_t stream)
{
    return stream->emulator;
}

/* Device memory under EMULATOR_MEMORY=guarded: whole pages, in a list that starts each of them. One thread's
 * devices at a time use it. */
struct guarded {
    struct guarded *next;
    size_t bytes; // whole pages, this head's too
};
enum { PAGE_BYTES = 4096 };

static _Thread_local struct guarded *guarded_pieces;

static bool memory_is_guarded(void)
{
    const char *memory = getenv("EMULATOR_MEMORY");
    return memory != NULL && strcmp(memory, "guarded") == 0;
}

static void allow(int protection)
{
    for (struct guarded *piece = guarded_pieces; piece != NULL; piece = piece->next)
        CHECK(mprotect((char *)piece + PAGE_BYTES, piece->bytes - PAGE_BYTES, protection) == 0);
}

static cudaError_t take_guarded(void **out, size_t bytes)
{
    size_t whole = PAGE_BYTES + (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    struct guarded *piece = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (piece == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    *piece = (struct guarded){guarded_pieces, whole};
    guarded_pieces = piece;
    *out = (char *)piece + PAGE_BYTES;
    memset(*out, 0xff, bytes);
    CHECK(mprotect(*out, whole - PAGE_BYTES, PROT_NONE) == 0);
    return cudaSuccess;
}

static bool give_guarded(void *data)
{
    for (struct guarded **link = &guarded_pieces; *link != NULL; link = &(*link)->next) {
        struct guarded *piece = *link;
        if ((char *)piece + PAGE_BYTES == (char *)data) {
            *link = piece->next;
            CHECK(munmap(piece, piece->bytes) == 0);
            return true;
        }
    }
    return false;
}

/* Runs the first entry of a stream, and before it what it waits for. */
static void let_go(cudaEvent_t event)
{
    if (--event->held == 0)
        free(event);
}

static void run_first(cudaStream_t stream)
{
    struct entry *entry = stream->first;
    while (entry->wait != NULL && entry->wait->passed < entry->number)
        run_first(entry->wait->stream);
    stream->first = entry->next;
    if (stream->first == NULL)
        stream->last = &stream->first;
    if (entry->run != NULL) {
        allow(PROT_READ | PROT_WRITE);
        entry->run(stream, entry->context);
        allow(PROT_NONE);
    }
    if (entry->record != NULL)
        entry->record->passed++;
    if (entry->wait != NULL)
        let_go(entry->wait);
    free(entry->context);
    free(entry);
}

static void run_all(cudaStream_t stream)
{
    while (stream->first != NULL)
        run_first(stream);
}

static void put(cudaStream_t stream, struct entry what)
{
    struct entry *entry = malloc(sizeof *entry);
    CHECK(entry != NULL);
    *entry = what;
    *stream->last = entry;
    stream->last = &entry->next;
    if (!stream->late)
        run_all(stream);
}

void emulator_put(cudaStream_t stream, void (*run)(cudaStream_t stream, void *context), void *context)
{
    put(stream, (struct entry){.run = run, .context = context});
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
    if (memory_is_guarded() && result_of("cudaMalloc", cudaErrorMemoryAllocation) == cudaSuccess)
        return take_guarded(out, bytes);
    return take(out, bytes, "cudaMalloc");
}

cudaError_t cudaFree(void *data)
{
    if (!give_guarded(data))
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
    (*out)->last = &(*out)->first;
    const char *streams = getenv("EMULATOR_STREAMS");
    (*out)->late = streams != NULL && strcmp(streams, "late") == 0;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    run_all(stream);
    emulator_destroy(stream->emulator);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    run_all(stream);
    return result_of("cudaStreamSynchronize", cudaErrorInvalidValue);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    if (event->recorded == 0)
        return cudaErrorInvalidValue; // CUDA would not wait, which is never meant
    event->held++;
    put(stream, (struct entry){.wait = event, .number = event->recorded});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    CHECK(*out != NULL);
    (*out)->held = 1;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    while (event->passed < event->recorded) // it could no more be asked for
        run_first(event->stream);
    let_go(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    while (event->passed < event->recorded && event->stream != stream)
        run_first(event->stream); // a record on another stream replaces this one: let it not overtake
    event->stream = stream;
    event->recorded++;
    put(stream, (struct entry){.record = event});
    return cudaSuccess;
}

/* Whoever asks gives the GPU time for one more thing. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (event->passed < event->recorded)
        run_first(event->stream);
    return event->passed < event->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->recorded == 0)
        return cudaErrorInvalidValue;
    while (event->passed < event->recorded)
        run_first(event->stream);
    return result_of("cudaEventSynchronize", cudaErrorInvalidValue);
}

struct move {
    void *to;
    const void *from;
    size_t bytes;
};

static void run_move(cudaStream_t stream, void *context)
{
    (void)stream;
    const struct move *move = context;
    memcpy(move->to, move->from, move->bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    struct move *move = malloc(sizeof *move);
    CHECK(move != NULL);
    *move = (struct move){to, from, bytes};
    emulator_put(stream, run_move, move);
    return result_of("cudaMemcpyAsync", cudaErrorInvalidValue);
}
