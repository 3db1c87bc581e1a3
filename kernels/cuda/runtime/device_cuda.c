// SPDX-License-Identifier: Apache-2.0
/* The cuda device: ops are enqueued on a CUDA stream, and the GPU executes them asynchronously, in order.
 *
 *     host:   gemm(X) ─ record e ─ wait(Y, e) ─ add(Y) ─ copy_to_host(Y) ─ event_sync(Y)
 *     GPU X:      gemm ─ e
 *     GPU Y:             e ─ add ─ copy into a pinned slot            then the slot goes to the host's memory
 *
 * Messages of a CPU transport (struct work) are driven by the host, as on the cpu device: one starts when the
 * GPU has completed everything before it, and an op submitted after one waits, on the host, for its
 * completion. The GPU therefore never waits for the host, and all work on its streams completes on its own.
 *
 * An event is a pair of counts: works of its stream completed, and a mark that the GPU has passed. Marks are
 * CUDA events in a ring; an overwritten mark is replaced by a later one of the same stream, which was
 * recorded before the current query, so the wait is longer but never circular. Works are counted exactly: a
 * later one may need a peer that needs ours first. */
#include "kernels/cuda/runtime/device_cuda.h"

#include "base/memory.h"
#include "base/text.h"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/graph.h"
#include "kernels/cuda/runtime/message.h"
#include "kernels/cuda/runtime/pool.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/runtime/time_marks.h"
#include "kernels/cuda/tensor_core/tensor_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MARKS = 64,
    MESSAGES = 64,
    POLLS = CUDA_IS_EMULATED ? 20 : 2000, // polls by a waiting host before it sleeps between them
    SLEEP_NS = 20000,                     // sleep between polls
    OLDEST_MAJOR = 8,
    OLDEST_MINOR = 0
};

struct pending {
    struct work *work;
    bool started;
    uint32_t mark; // it starts after this mark
};

struct cuda_stream {
    struct cuda_queue queue;  // first
    struct cuda_stream *next; // list of the device's streams
    cudaEvent_t mark[MARKS];
    uint32_t marks;          // recorded, in total
    uint32_t finished;       // works, in total
    struct pending *pending; // [begin, end) are incomplete; only the first can have started
    int64_t begin, end, capacity;
    struct op last; // last op submitted, for messages about later errors
    struct buffer message_scratch;
};

/* A message sent by the GPU itself, possibly still in flight. */
struct message_mark {
    struct cuda_stream *stream; // NULL: closed since
    uint32_t mark;
    struct progress_range recorded;
    struct cuda_guard *guard;
    char name[56];
};

struct cuda_device {
    struct cuda_pool *pool;
    struct cuda_staging *staging;
    struct cuda_library *library;
    struct cuda_attention *attention;
    struct attention_launches launches;
    bool tf32;
    cuda_tensor_encoder encode;
    int max_blocks;
    struct cuda_stream *streams;
    struct message_mark message[MESSAGES]; // [first, last) may be in flight, modulo MESSAGES
    uint32_t first_message, last_message;
    struct cuda_marks *followed; // marks around the actions; NULL: none
};

static struct cuda_device *device_of(struct stream *stream)
{
    return stream->device->state;
}

/* Opening */

enum status cuda_gpu_count(int *out)
{
    int count = 0, driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    *out = count;
    if (error == cudaSuccess && count > 0)
        return OK;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        driver = runtime = 0;
    if (error == cudaErrorInsufficientDriver && driver > 0)
        return fail(
            NOT_SUPPORTED,
            "cluster.device cuda: the driver is too old: it supports CUDA %d.%d, and this build requires "
            "%d.%d; install a newer driver, or use cluster.device=cpu",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorInsufficientDriver)
        return fail(
            NOT_SUPPORTED,
            "cluster.device cuda: no NVIDIA driver found; it requires one, and an NVIDIA GPU of compute "
            "capability %d.%d or newer; use cluster.device=cpu",
            OLDEST_MAJOR, OLDEST_MINOR);
    const bool not_asked = getenv("SLURM_JOB_ID") != NULL && getenv("SLURM_GPUS_ON_NODE") == NULL;
    return fail(
        NOT_SUPPORTED,
        "cluster.device cuda: no GPU found: cudaGetDeviceCount returned \"%s\" (the driver supports CUDA "
        "%d.%d, this build requires %d.%d); it requires an NVIDIA GPU of compute capability %d.%d or "
        "newer and its driver; %suse cluster.device=cpu",
        error != cudaSuccess ? cudaGetErrorString(error) : "0", driver / 1000, driver % 1000 / 10,
        runtime / 1000, runtime % 1000 / 10, OLDEST_MAJOR, OLDEST_MINOR,
        not_asked ? "ask Slurm for GPUs (srun --gpus-per-node), or " : "");
}

enum status cuda_gpu_choose(int index, struct cuda_gpu *out)
{
    int count;
    struct cuda_gpu gpu;
    struct cudaDeviceProp properties;
    TRY(cuda_gpu_count(&count));
    if (index < 0 || index >= count)
        return fail(NOT_SUPPORTED,
                    "cluster.device cuda: this rank needs GPU %d, but this process sees only %d", index,
                    count);
    TRY(cuda_check(NULL, cudaSetDevice(index), "cudaSetDevice"));
    TRY(cuda_check(NULL, cudaDeviceGetAttribute(&gpu.major, cudaDevAttrComputeCapabilityMajor, index),
                   "cudaDeviceGetAttribute"));
    TRY(cuda_check(NULL, cudaDeviceGetAttribute(&gpu.minor, cudaDevAttrComputeCapabilityMinor, index),
                   "cudaDeviceGetAttribute"));
    TRY(cuda_check(NULL, cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
    if (gpu.major < OLDEST_MAJOR)
        return fail(
            NOT_SUPPORTED,
            "cluster.device cuda: GPU %d, %.60s, has compute capability %d.%d, and this build requires "
            "%d.%d or newer; "
            "choose another with CUDA_VISIBLE_DEVICES, or use cluster.device=cpu",
            index, properties.name, gpu.major, gpu.minor, OLDEST_MAJOR, OLDEST_MINOR);
    TRY(cuda_check(NULL, cudaDeviceGetPCIBusId(gpu.bus_id, sizeof gpu.bus_id, index),
                   "cudaDeviceGetPCIBusId"));
    snprintf(gpu.name, sizeof gpu.name, "%.*s", (int)sizeof gpu.name - 1, properties.name);
    *out = gpu;
    return OK;
}

static void close_state(struct cuda_device *d)
{
    cuda_attention_close(d->attention);
    cuda_library_close(d->library);
    cuda_staging_destroy(d->staging);
    cuda_pool_destroy(d->pool);
    free(d);
}

static enum status cuda_open(struct device *device, const struct device_options *options)
{
    struct cuda_gpu gpu;
    TRY(cuda_gpu_choose(options->index, &gpu));
    struct cuda_device *d = memory_zeroed(1, sizeof *d, "a cuda device");
    d->tf32 = options->kernels.tf32;
    d->max_blocks = options->max_blocks;
    enum status status = cuda_pool_create(options->reserve_bytes, &d->pool);
    if (status == OK)
        status = cuda_staging_create(&d->staging);
    if (status == OK)
        status = cuda_library_open(&gpu, options, &d->library);
    if (status == OK && options->kernels.attention != ATTENTION_OWN_MMA)
        status = tensor_map_open(&gpu, &d->encode);
    if (status == OK)
        status = cuda_attention_open(options, &d->attention);
    if (status != OK) {
        close_state(d);
        return status;
    }
    device->state = d;
    device->has_epilogues = cuda_library_has_epilogues(d->library);
    return OK;
}

static void cuda_close(struct device *device)
{
    close_state(device->state);
}

static void cuda_choices(const struct device *device, struct text *out)
{
    const struct cuda_device *d = device->state;
    cuda_attention_choices(d->attention, out);
    cuda_report_attention_launches(&d->launches, out);
    cuda_library_choices(d->library, out);
}

static enum status cuda_alloc(struct device *device, enum part part, size_t bytes, void **out)
{
    (void)part;
    return cuda_pool_alloc(((struct cuda_device *)device->state)->pool, bytes, out);
}

static void cuda_free(struct device *device, enum part part, void *data, size_t bytes)
{
    (void)part;
    (void)bytes;
    cuda_pool_free(((struct cuda_device *)device->state)->pool, data);
}

static void range(struct device *device, const char *name)
{
    (void)device;
    cuda_range(name);
}

/* Offload memory: pinned, so that copies need no host (staging.h). */
static enum status cuda_host_alloc(struct device *device, size_t bytes, void **out)
{
    return cuda_staging_pin(((struct cuda_device *)device->state)->staging, bytes, out);
}

static void cuda_host_free(struct device *device, void *data, size_t bytes)
{
    (void)bytes;
    cuda_staging_unpin(((struct cuda_device *)device->state)->staging, data);
}

/* Pinned memory stays resident. */
static void cuda_host_page_out(void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}

/* Streams */

static void free_stream(struct cuda_stream *s)
{
    for (int i = 0; i < MARKS; i++)
        if (s->mark[i] != NULL)
            cudaEventDestroy(s->mark[i]);
    if (s->queue.stream != NULL)
        cudaStreamDestroy(s->queue.stream);
    free(s->pending);
    free(s);
}

static enum status cuda_stream_open(struct stream *stream)
{
    struct cuda_stream *s = memory_zeroed(1, sizeof *s, "a stream");
    s->queue = (struct cuda_queue){.device = stream->device,
                                   .name = stream->name,
                                   .library = device_of(stream)->library,
                                   .attention = device_of(stream)->attention,
                                   .launches = &device_of(stream)->launches,
                                   .tf32 = device_of(stream)->tf32,
                                   .encode = device_of(stream)->encode,
                                   .max_blocks = device_of(stream)->max_blocks};
    enum status status = cuda_check(NULL, cudaStreamCreateWithFlags(&s->queue.stream, cudaStreamNonBlocking),
                                    "cudaStreamCreateWithFlags");
    for (int i = 0; status == OK && i < MARKS; i++)
        status = cuda_check(NULL, cudaEventCreateWithFlags(&s->mark[i], cudaEventDisableTiming),
                            "cudaEventCreateWithFlags");
    if (status != OK) {
        free_stream(s);
        return status;
    }
    s->next = device_of(stream)->streams;
    device_of(stream)->streams = s;
    stream->state = s;
    return OK;
}

static void cuda_stream_close(struct stream *stream)
{
    struct cuda_stream *s = stream->state, **link = &device_of(stream)->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    for (int i = 0; i < MESSAGES; i++)
        if (device_of(stream)->message[i].stream == s)
            device_of(stream)->message[i].stream = NULL;
    buffer_free(&s->queue.scratch);
    buffer_free(&s->message_scratch);
    free_stream(s);
}

/* Marks: recorded GPU progress. */

static uint32_t make_mark(struct cuda_stream *s)
{
    // An error affects the whole context, and the next synchronization reports it.
    cudaError_t ignored = cudaEventRecord(s->mark[s->marks % MARKS], s->queue.stream);
    (void)ignored;
    return s->marks++;
}

static cudaEvent_t mark_event(const struct cuda_stream *s, uint32_t mark)
{
    if (s->marks - mark > MARKS)
        mark = s->marks - MARKS; // overwritten: the oldest left is later, and sufficient
    return s->mark[mark % MARKS];
}

/* The number of works of `s` so far, including incomplete ones. */
static uint32_t works_of(const struct cuda_stream *s)
{
    return s->finished + (uint32_t)(s->end - s->begin);
}

/* Messages sent by the GPU itself */

static bool is_passed(const struct message_mark *m)
{
    return m->stream == NULL || cudaEventQuery(mark_event(m->stream, m->mark)) == cudaSuccess;
}

/* The first message that the GPU may be blocked on, or NULL. They complete approximately in order of
 * submission. */
static const struct message_mark *first_message(struct cuda_device *d)
{
    while (d->first_message != d->last_message && is_passed(&d->message[d->first_message % MESSAGES]))
        progress_done(d->message[d->first_message++ % MESSAGES].recorded);
    return d->first_message != d->last_message ? &d->message[d->first_message % MESSAGES] : NULL;
}

void cuda_follow(struct device *device, const struct cuda_marks *before, struct cuda_marks *now)
{
    struct cuda_device *d = device->state;
    if (d->followed == before)
        d->followed = now;
}

/* Publishes how far the GPU has come, while the host waits for it. */
static void publish_progress(struct cuda_device *d)
{
    struct progress_gpu gpu;
    if (d->followed == NULL || !progress_is_published())
        return;
    cuda_marks_progress(d->followed, &gpu);
    progress_set_gpu(&gpu);
}

/* Blocks until the GPU has passed `event`. Uses CUDA's own waiting only if no peer can prevent that, and no
 * monitor looks at the progress. */
static enum status block(struct cuda_device *d, const struct cuda_queue *queue, cudaEvent_t event)
{
    if (first_message(d) == NULL && (d->followed == NULL || !progress_is_published()))
        return cuda_check(queue, cudaEventSynchronize(event), "cudaEventSynchronize");
    enum status status = OK;
    for (int64_t polls = 1; status == OK; polls++) {
        cudaError_t error = cudaEventQuery(event);
        if (error != cudaErrorNotReady) {
            status = cuda_check(queue, error, "cudaEventQuery");
            break;
        }
        if (polls < POLLS)
            continue;
        const struct message_mark *m = first_message(d);
        if (m != NULL)
            rank_context_set_wait_for(m->name, m->recorded);
        if (m != NULL)
            status = m->guard->check(m->guard);
        publish_progress(d);
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    rank_context_set_wait("");
    progress_set_gpu(&(struct progress_gpu){.current = ""});
    return status;
}

enum status cuda_block(const struct cuda_queue *queue, cudaEvent_t event)
{
    return block(queue->device->state, queue, event);
}

/* Works */

static enum status start_if_due(struct cuda_stream *s, struct pending *p)
{
    cudaError_t error = cudaEventQuery(mark_event(s, p->mark));
    if (error == cudaErrorNotReady)
        return OK;
    TRY(cuda_check(&s->queue, error, "cudaEventQuery"));
    p->started = true;
    return work_start(p->work);
}

/* Makes progress on the first works of `s`. */
static enum status advance(struct cuda_stream *s)
{
    while (s->begin < s->end) {
        struct pending *p = &s->pending[s->begin];
        bool done = false;
        enum status status = p->started ? OK : start_if_due(s, p);
        if (status == OK && p->started)
            status = work_poll(p->work, &done);
        if (done || status != OK) {
            s->begin++;
            s->finished++;
            if (s->begin == s->end)
                s->begin = s->end = 0;
        }
        TRY(status);
        if (!done)
            return OK;
    }
    return OK;
}

/* Sleeps until a work may progress: until the GPU has reached one that has not started, which needs no peer;
 * else until a message of this rank progresses. */
static enum status sleep_until_progress(struct cuda_device *d)
{
    struct pending *started = NULL;
    for (struct cuda_stream *s = d->streams; s != NULL; s = s->next) {
        if (s->begin == s->end)
            continue;
        struct pending *p = &s->pending[s->begin];
        if (!p->started)
            return block(d, &s->queue, mark_event(s, p->mark));
        started = p;
    }
    CHECK(started != NULL);
    work_sleep(started->work);
    return OK;
}

/* Blocks until `s` has completed its first `works` works. */
static enum status finish_works(struct cuda_device *d, struct cuda_stream *s, uint32_t works)
{
    while ((int32_t)(works - s->finished) > 0) {
        uint32_t before = 0, after = 0;
        for (struct cuda_stream *one = d->streams; one != NULL; one = one->next)
            before += one->finished;
        for (struct cuda_stream *one = d->streams; one != NULL; one = one->next)
            TRY(advance(one));
        for (struct cuda_stream *one = d->streams; one != NULL; one = one->next)
            after += one->finished;
        if (before == after)
            TRY(sleep_until_progress(d));
    }
    return OK;
}

bool cuda_has_works(const struct stream *stream)
{
    const struct cuda_stream *s = stream->state;
    return s->finished != works_of(s);
}

static void push(struct cuda_stream *s, struct pending pending_work)
{
    if (s->end == s->capacity) {
        int64_t count = s->end - s->begin, capacity = 2 * count + 16;
        struct pending *pending =
            memory_resized(NULL, (size_t)capacity, sizeof *pending, "the queue of a stream");
        if (count > 0)
            memcpy(pending, s->pending + s->begin, (size_t)count * sizeof *pending);
        free(s->pending);
        s->pending = pending;
        s->begin = 0;
        s->end = count;
        s->capacity = capacity;
    }
    s->pending[s->end++] = pending_work;
}

static enum status cuda_submit_work(struct stream *stream, struct work *work)
{
    struct cuda_stream *s = stream->state;
    push(s, (struct pending){.work = work, .mark = make_mark(s)});
    return advance(s);
}

/* Ops and events */

static enum status cuda_submit(struct stream *stream, const struct op *op)
{
    struct cuda_device *d = device_of(stream);
    struct cuda_stream *s = stream->state;
    TRY(finish_works(d, s, works_of(s)));
    s->last = *op;
    s->queue.op = &s->last;
    if (op->kind == OP_TO_DEVICE || op->kind == OP_TO_HOST)
        TRY(cuda_staging_copy(d->staging, &s->queue, op->kind, &op->transfer));
    else
        TRY(cuda_run(&s->queue, op));
    if (s->queue.is_captured) // capture forbids queries
        return OK;
    for (struct cuda_stream *one = d->streams; one != NULL; one = one->next)
        TRY(advance(one));
    return OK;
}

static enum status cuda_vendor_copy(struct stream *stream, void *to, const void *from, size_t bytes)
{
    struct cuda_queue *queue;
    TRY(cuda_message_begin(stream, &queue));
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, queue->stream);
    return cuda_check(queue, error, "cudaMemcpyAsync");
}

/* Both counters wrap at 2^32, and are only compared with nearby ones. */
static uint64_t cuda_record(struct stream *stream)
{
    struct cuda_stream *s = stream->state;
    return (uint64_t)works_of(s) << 32 | make_mark(s);
}

static enum status cuda_wait(struct stream *stream, struct event event)
{
    struct cuda_stream *s = stream->state, *other = event.stream->state;
    TRY(finish_works(device_of(stream), other, (uint32_t)(event.at >> 32)));
    cudaEvent_t mark = mark_event(other, (uint32_t)event.at);
    return cuda_check(&s->queue, cudaStreamWaitEvent(s->queue.stream, mark, 0), "cudaStreamWaitEvent");
}

static enum status cuda_sync(struct event event)
{
    struct cuda_stream *s = event.stream->state;
    struct cuda_device *d = device_of(event.stream);
    TRY(finish_works(d, s, (uint32_t)(event.at >> 32)));
    // Asynchronous GPU errors surface here, and are reported with the op submitted last.
    TRY(block(d, &s->queue, mark_event(s, (uint32_t)event.at)));
    return cuda_staging_deliver(d->staging);
}

/* For transports between GPUs: message.h */

enum status cuda_message_begin(struct stream *stream, struct cuda_queue **out)
{
    struct cuda_stream *s = stream->state;
    TRY(finish_works(device_of(stream), s, works_of(s)));
    s->queue.op = NULL;
    *out = &s->queue;
    return OK;
}

enum status cuda_message_end(struct cuda_queue *queue, const char *name, struct cuda_guard *guard)
{
    struct cuda_device *d = queue->device->state;
    struct cuda_stream *s = (struct cuda_stream *)queue; // its first member
    if (d->last_message - d->first_message == MESSAGES)
        d->first_message++; // one less that a message could name
    struct message_mark *m = &d->message[d->last_message++ % MESSAGES];
    *m =
        (struct message_mark){.stream = s, .mark = make_mark(s), .recorded = progress_take(), .guard = guard};
    snprintf(m->name, sizeof m->name, "%s", name);
    return OK;
}

enum status cuda_message_scratch(struct cuda_queue *queue, size_t bytes, void **out)
{
    struct cuda_stream *s = (struct cuda_stream *)queue;
    if (s->message_scratch.bytes < bytes) {
        // Work submitted earlier may still use the old buffer.
        TRY(cuda_block(queue, mark_event(s, make_mark(s))));
        buffer_free(&s->message_scratch);
        TRY(buffer_alloc(queue->device, PART_COMMUNICATION, bytes, &s->message_scratch));
    }
    *out = s->message_scratch.data;
    return OK;
}

const struct device_ops device_cuda = {
    .traits = &device_traits_cuda,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_page_out = cuda_host_page_out,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .submit = cuda_submit,
    .submit_work = cuda_submit_work,
    .record = cuda_record,
    .wait = cuda_wait,
    .sync = cuda_sync,
    .check_algorithms = cuda_library_check,
    .choices = cuda_choices,
    .vendor_copy = cuda_vendor_copy,
    .compute_ns = device_host_ns,
    .time_marks = &cuda_time_marks,
    .range = range,
    .replay = cuda_replay,
    .replay_end = cuda_replay_end,
};
