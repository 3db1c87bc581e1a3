// SPDX-License-Identifier: Apache-2.0
/* The CUDA runtime for the emulated GPU: a stream is a queue. It runs at once, or with EMULATOR_STREAMS=late
 * when it is synchronized, queried, or blocked on itself.
 *
 * Caution: a GPU belongs to one thread, and so does everything here. Other GPUs are reached by messages only
 * (NCCL's), so a waiting thread runs any ready work of its own, and sleeps until it is signalled. */
#include "tests/emulator/include/cuda_runtime_api.h"

#include "base/status.h"
#include "tests/emulator/gpu/emulator.h"
#include "tests/emulator/gpu/graph.h"

#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* An entry of a stream: a call, a message, an event record, or a wait for an event. */
struct entry {
    struct entry *next;
    void (*run)(cudaStream_t stream, void *context);
    void *context;
    struct emulator_message *message;
    cudaEvent_t record, wait;
    uint64_t number; // of the record that a wait is for
};

struct CUstream_st {
    struct CUstream_st *next; // list of this thread's streams
    struct emulator *emulator;
    bool late;
    int64_t clock_ns;
    struct entry *first, **last;
    cudaGraph_t captured; // new work is added to it; NULL: to the stream
};
struct CUevent_st {
    cudaStream_t stream; // of the last record
    uint64_t recorded, passed;
    int64_t passed_ns;    // on the clock of its stream
    bool timed, captured; // captured: the last record was during capture
    int references;       // of owner, and of waits on streams
};

struct emulator *emulator_of(cudaStream_t stream)
{
    return stream->emulator;
}

/* Device memory under EMULATOR_MEMORY=guarded: full pages, in a list whose links are in their first bytes.
 * Used by one thread's devices at a time. */
struct guarded {
    struct guarded *next;
    size_t bytes; // full pages, including this header
};
enum { PAGE_BYTES = 4096 };

static _Thread_local struct guarded *guarded_blocks;

static bool memory_is_guarded(void)
{
    const char *memory = getenv("EMULATOR_MEMORY");
    return memory != NULL && strcmp(memory, "guarded") == 0;
}

static void protect_guarded(int protection)
{
    for (struct guarded *block = guarded_blocks; block != NULL; block = block->next)
        CHECK(mprotect((char *)block + PAGE_BYTES, block->bytes - PAGE_BYTES, protection) == 0);
}

static cudaError_t alloc_guarded(void **out, size_t bytes)
{
    size_t whole = PAGE_BYTES + (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    struct guarded *block = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    *block = (struct guarded){guarded_blocks, whole};
    guarded_blocks = block;
    *out = (char *)block + PAGE_BYTES;
    memset(*out, 0xff, bytes);
    CHECK(mprotect(*out, whole - PAGE_BYTES, PROT_NONE) == 0);
    return cudaSuccess;
}

static bool free_guarded(void *data)
{
    for (struct guarded **link = &guarded_blocks; *link != NULL; link = &(*link)->next) {
        struct guarded *block = *link;
        if ((char *)block + PAGE_BYTES == (char *)data) {
            *link = block->next;
            CHECK(munmap(block, block->bytes) == 0);
            return true;
        }
    }
    return false;
}

/* ---- this thread's GPU ---- */

static _Thread_local cudaStream_t streams;
static _Thread_local int device;
static _Thread_local int64_t moved_ns, slept_ns; // last progress; last sleep of this thread
static _Thread_local struct emulator_calls calls;
static _Thread_local bool is_stuck;         // a kernel never ends
static _Thread_local cudaEvent_t not_ready; // last queried, incomplete

static atomic_uint notifications;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

int emulator_device(void)
{
    return device;
}

struct emulator_calls emulator_calls(void)
{
    return calls;
}

void emulator_notify(void)
{
    atomic_fetch_add(&notifications, 1);
    syscall(SYS_futex, &notifications, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void emulator_sleep(void)
{
    const char *patience = getenv("EMULATOR_PATIENCE_MS");
    int64_t limit_ms = patience != NULL ? strtoll(patience, NULL, 10) : 60000;
    struct timespec moment = {.tv_nsec = 1000000};
    int64_t now = now_ns();
    if (now - slept_ns > 1000000000) // the thread was busy with something else
        moved_ns = now;
    slept_ns = now;
    if (now - moved_ns > limit_ms * 1000000) {
        for (cudaStream_t s = streams; s != NULL; s = s->next)
            if (s->first != NULL && s->first->message != NULL)
                s->first->message->describe(s->first->message, stderr);
        die(__FILE__, __LINE__, "the emulated GPU", "no progress: deadlock");
    }
    syscall(SYS_futex, &notifications, FUTEX_WAIT_PRIVATE, atomic_load(&notifications), &moment, NULL, 0);
}

/* The clock of a stream advances by the durations of its calls that have one. Under EMULATOR_CLOCK=host it is
 * that of the host. */
static int64_t stream_time_ns(const struct CUstream_st *stream)
{
    const char *clock = getenv("EMULATOR_CLOCK");
    return clock != NULL && strcmp(clock, "host") == 0 ? now_ns() : stream->clock_ns;
}

static void release_event(cudaEvent_t event)
{
    if (--event->references == 0)
        free(event);
}

/* The first message has progressed, or is complete and can be removed. */
static bool move_message(struct emulator_message *message, bool *done)
{
    bool moved = false;
    protect_guarded(PROT_READ | PROT_WRITE);
    *done = message->move(message, &moved);
    protect_guarded(PROT_NONE);
    if (moved || *done)
        emulator_notify();
    return moved;
}

/* Runs the first entry of a stream, or first its dependency. False: it waits for a message. */
static bool run_first(cudaStream_t stream)
{
    struct entry *entry = stream->first;
    bool done = true;
    if (entry == NULL)
        return false;
    if (entry->wait != NULL && entry->wait->passed < entry->number)
        return run_first(entry->wait->stream);
    if (entry->message != NULL) {
        bool moved = move_message(entry->message, &done);
        if (!done)
            return moved;
    }
    stream->first = entry->next;
    if (stream->first == NULL)
        stream->last = &stream->first;
    if (entry->run != NULL) {
        protect_guarded(PROT_READ | PROT_WRITE);
        entry->run(stream, entry->context);
        protect_guarded(PROT_NONE);
    }
    if (entry->record != NULL) {
        entry->record->passed++;
        entry->record->passed_ns = stream_time_ns(stream);
    }
    if (entry->wait != NULL)
        release_event(entry->wait);
    free(entry->context);
    free(entry->message);
    free(entry);
    return true;
}

/* Runs one entry; if this stream is blocked, of any other: a peer may need it first. */
static void run_more(cudaStream_t stream)
{
    bool moved = run_first(stream);
    for (cudaStream_t s = streams; s != NULL && !moved; s = s->next)
        moved = run_first(s);
    if (moved)
        moved_ns = now_ns();
    else
        emulator_sleep();
}

static void run_all(cudaStream_t stream)
{
    while (stream->first != NULL)
        run_more(stream);
}

static void enqueue(cudaStream_t stream, struct entry what)
{
    struct entry *entry = malloc(sizeof *entry);
    CHECK(entry != NULL);
    *entry = what;
    *stream->last = entry;
    stream->last = &entry->next;
    if (!stream->late)
        while (run_first(stream)) // as far as possible
            moved_ns = now_ns();
}

cudaGraph_t *emulator_graph_of(cudaStream_t stream)
{
    return &stream->captured;
}

void emulator_enqueue(cudaStream_t stream, const char *name, void (*run)(cudaStream_t stream, void *context),
                      void *context, size_t bytes)
{
    if (stream->captured != NULL) {
        emulator_graph_add(stream->captured, (struct emulator_node){name, run, context, bytes});
        return;
    }
    calls.launches++;
    struct emulator_message *stuck = emulator_stuck(&is_stuck);
    if (stuck != NULL)
        emulator_enqueue_message(stream, stuck);
    enqueue(stream, (struct entry){.run = run, .context = context});
}

void emulator_count_graph(void)
{
    calls.launches--;
    calls.graphs++;
}

/* EMULATOR_SLOW="2 20": the clock of GPU 2 is 20 % slower. */
void emulator_advance_clock(cudaStream_t stream, int64_t ns)
{
    enum { PERCENT = 100 };
    const char *slow = getenv("EMULATOR_SLOW");
    char *percent = NULL;
    if (slow != NULL && strtol(slow, &percent, 10) == device)
        ns += ns * strtol(percent, NULL, 10) / PERCENT;
    stream->clock_ns += ns;
}

void emulator_enqueue_message(cudaStream_t stream, struct emulator_message *message)
{
    CHECK(stream->captured == NULL); // not implemented: NCCL's can be captured
    enqueue(stream, (struct entry){.message = message});
}

static cudaError_t result_of(const char *call, cudaError_t when_failing)
{
    return emulator_returns(emulator_fails(call) ? when_failing : cudaSuccess);
}

static int gpus(void)
{
    const char *count = getenv("EMULATOR_GPUS");
    return count != NULL ? (int)strtol(count, NULL, 10) : 1;
}

static cudaError_t check_device(int number)
{
    return emulator_returns(number >= 0 && number < gpus() ? cudaSuccess : cudaErrorInvalidValue);
}

/* The driver's CUDA version, 1000 x major + 10 x minor; 0: no driver. */
static int driver(void)
{
    const char *version = getenv("EMULATOR_DRIVER");
    return version != NULL ? (int)strtol(version, NULL, 10) : 13000;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = gpus();
    if (driver() < 13000)
        return emulator_returns(cudaErrorInsufficientDriver);
    return result_of("cudaGetDeviceCount", cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int number)
{
    device = check_device(number) == cudaSuccess ? number : device;
    return check_device(number);
}

cudaError_t cudaGetDevice(int *out)
{
    *out = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int number)
{
    bool other = emulator_fails("cudaGetDeviceProperties") && number == gpus() - 1;
    snprintf(out->name, sizeof out->name, "%s", other ? "another emulated GPU" : "emulated GPU");
    return check_device(number);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int chars, int number)
{
    snprintf(out, (size_t)chars, "0000:%02x:00.0", (unsigned)number & 0xff);
    return check_device(number);
}

/* Few unless EMULATOR_PROCESSORS is set, so that persistent blocks have several work tiles. */
static int processors(void)
{
    const char *count = getenv("EMULATOR_PROCESSORS");
    return count != NULL ? (int)strtol(count, NULL, 10) : 2;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number)
{
    const char *capability = getenv("EMULATOR_CAPABILITY");
    const long tenths = lround(10.0 * (capability != NULL ? strtod(capability, NULL) : 9.0));
    *value = (int)(attribute == cudaDevAttrComputeCapabilityMajor ? tenths / 10 : tenths % 10);
    if (attribute == cudaDevAttrMultiProcessorCount)
        *value = processors();
    else if (result_of("cudaDeviceGetAttribute", cudaErrorNoDevice) != cudaSuccess)
        *value = 7; // too old
    return check_device(number);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    if (result_of("cudaMemGetInfo", cudaErrorMemoryAllocation) != cudaSuccess)
        return cudaErrorMemoryAllocation;
    *total_bytes = (size_t)1 << 30;
    *free_bytes = *total_bytes - (size_t)emulator_graphs() * EMULATOR_GRAPH_BYTES;
    return cudaSuccess;
}

static cudaError_t alloc(void **out, size_t bytes, const char *call)
{
    *out = NULL;
    calls.allocations++;
    if (result_of(call, cudaErrorMemoryAllocation) != cudaSuccess || posix_memalign(out, 256, bytes) != 0)
        return emulator_returns(cudaErrorMemoryAllocation);
    memset(*out, 0xff, bytes);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    calls.device_allocs++;
    const char *largest = getenv("EMULATOR_LARGEST");
    if (largest != NULL && bytes > strtoull(largest, NULL, 10))
        return emulator_returns(cudaErrorMemoryAllocation);
    if (memory_is_guarded() && result_of("cudaMalloc", cudaErrorMemoryAllocation) == cudaSuccess) {
        calls.allocations++;
        return alloc_guarded(out, bytes);
    }
    return alloc(out, bytes, "cudaMalloc");
}

cudaError_t cudaFree(void *data)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    calls.allocations++;
    if (!free_guarded(data))
        free(data);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    return alloc(out, bytes, "cudaMallocHost");
}

cudaError_t cudaFreeHost(void *data)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    calls.allocations++;
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
    const char *late = getenv("EMULATOR_STREAMS");
    (*out)->late = late != NULL && strcmp(late, "late") == 0;
    (*out)->next = streams;
    streams = *out;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    cudaStream_t *link = &streams;
    run_all(stream);
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    emulator_destroy(stream->emulator);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    calls.syncs++;
    run_all(stream);
    return result_of("cudaStreamSynchronize", cudaErrorInvalidValue);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (stream->first != NULL)
        run_more(stream);
    return emulator_returns(stream->first != NULL ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    if (stream->captured != NULL && !event->captured) {
        (void)emulator_forbid();
        return emulator_returns(cudaErrorStreamCaptureIsolation);
    }
    if (event->captured) // in CUDA the other stream would join the capture: not implemented
        return emulator_returns(stream->captured != NULL ? cudaSuccess : cudaErrorCapturedEvent);
    if (event->recorded == 0)
        return emulator_returns(cudaErrorInvalidValue); // CUDA would not wait, which is never intended
    event->references++;
    enqueue(stream, (struct entry){.wait = event, .number = event->recorded});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = calloc(1, sizeof **out);
    CHECK(*out != NULL);
    (*out)->references = 1;
    (*out)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    while (event->passed < event->recorded) // afterwards it could not be queried
        run_more(event->stream);
    release_event(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->captured = stream->captured != NULL;
    if (event->captured)
        return cudaSuccess;
    while (event->passed < event->recorded && event->stream != stream)
        run_more(event->stream); // a record on another stream replaces this one, but must not overtake it
    event->stream = stream;
    event->recorded++;
    enqueue(stream, (struct entry){.record = event});
    return cudaSuccess;
}

/* A query gives the GPU time for one entry. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (event->captured)
        return emulator_returns(cudaErrorCapturedEvent);
    if (event->passed < event->recorded)
        run_more(event->stream);
    if (event->passed >= event->recorded)
        return cudaSuccess;
    calls.polls += event == not_ready;
    not_ready = event;
    return emulator_returns(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (emulator_forbid() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (event->captured)
        return emulator_returns(cudaErrorCapturedEvent);
    calls.syncs++;
    if (event->recorded == 0)
        return emulator_returns(cudaErrorInvalidValue);
    while (event->passed < event->recorded)
        run_more(event->stream);
    return result_of("cudaEventSynchronize", cudaErrorInvalidValue);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->timed || !to->timed || from->recorded == 0 || to->recorded == 0)
        return emulator_returns(cudaErrorInvalidResourceHandle);
    if (from->passed < from->recorded || to->passed < to->recorded)
        return emulator_returns(cudaErrorNotReady);
    *ms = (float)(to->passed_ns - from->passed_ns) * 1e-6F;
    return cudaSuccess;
}

struct memcpy_call {
    void *to;
    const void *from;
    size_t bytes;
};

static void run_memcpy(cudaStream_t stream, void *context)
{
    (void)stream;
    const struct memcpy_call *move = context;
    memcpy(move->to, move->from, move->bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    struct memcpy_call *move = malloc(sizeof *move);
    CHECK(move != NULL);
    *move = (struct memcpy_call){to, from, bytes};
    emulator_enqueue(stream, "cudaMemcpyAsync", run_memcpy, move, sizeof *move);
    return result_of("cudaMemcpyAsync", cudaErrorInvalidValue);
}
