// SPDX-License-Identifier: Apache-2.0
/* The cpu device: streams are synchronous. An op is complete when the call returns; only messages (struct
 * work) can still be in flight.
 *
 *     edge:   [recv 3: started] [recv 4: not yet]      an op submitted here first completes both, then runs
 *
 * Work starts when everything before it on its stream is complete, so later messages wait in a queue until
 * the host starts them: every op polls all streams of the device once, and a blocked host polls all of them
 * in a loop, resting after a round without progress. */
#include "kernels/cpu/device_cpu.h"

#include "base/clock.h"
#include "base/memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/host_marks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct cpu_stream {
    struct cpu_stream *next; // list of the device's streams
    struct work **queue;     // [begin, end) are incomplete; only the first may have started
    int64_t begin, end, capacity;
    bool started;
    uint64_t finished; // completed works of this stream, in total
};

struct cpu_device {
    struct cpu_state cpu; // first: cpu_parallel() relies on it
    struct cpu_stream *streams;
    int64_t waiting; // pending works on all streams
    int64_t idle_ns; // processor time of waits for messages
};

static struct cpu_device *device_of(struct stream *stream)
{
    return stream->device->state;
}

/* Asks for huge pages: with small ones address translation takes about a tenth of a step. */
static enum status cpu_alloc(struct device *device, enum part part, size_t bytes, void **out)
{
    (void)part;
    (void)device;
    enum { HUGE_PAGE_BYTES = 1 << 21 };
    const size_t huge_bytes = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    // (Not aligned_alloc(), which may demand a multiple of the alignment.)
    if (posix_memalign(out, huge_bytes > 0 ? HUGE_PAGE_BYTES : 64, bytes) != 0)
        return NO_MEMORY;
    if (huge_bytes > 0)
        (void)madvise(*out, huge_bytes, MADV_HUGEPAGE); // a kernel without them gives small ones
    return OK;
}

static void cpu_free(struct device *device, enum part part, void *data, size_t bytes)
{
    (void)part;
    (void)device;
    (void)bytes;
    free(data);
}

static enum status cpu_open(struct device *device, const struct device_options *options)
{
    (void)options;
    struct cpu_device *state = memory_zeroed(1, sizeof *state, "a cpu device");
    enum status status = cpu_state_open(device, &state->cpu);
    if (status == OK)
        device->state = state;
    else
        free(state);
    return status;
}

static void cpu_close(struct device *device)
{
    struct cpu_device *state = device->state;
    cpu_state_close(device, &state->cpu);
    free(state);
}

static enum status cpu_stream_open(struct stream *stream)
{
    struct cpu_stream *s = memory_zeroed(1, sizeof *s, "a stream");
    s->next = device_of(stream)->streams;
    device_of(stream)->streams = s;
    stream->state = s;
    return OK;
}

static void cpu_stream_close(struct stream *stream)
{
    struct cpu_stream *s = stream->state, **link = &device_of(stream)->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    device_of(stream)->waiting -= s->end - s->begin; // remaining after an error
    free(s->queue);
    free(s);
}

static void pop(struct cpu_device *d, struct cpu_stream *s)
{
    s->begin++;
    s->finished++;
    s->started = false;
    d->waiting--;
    if (s->begin == s->end)
        s->begin = s->end = 0;
}

/* Starts and polls work in order, until one is incomplete. */
static enum status advance(struct cpu_device *d, struct cpu_stream *s)
{
    while (s->begin < s->end) {
        struct work *work = s->queue[s->begin];
        bool done = false;
        enum status status = s->started ? OK : work_start(work);
        s->started = true;
        if (status == OK)
            status = work_poll(work, &done);
        if (done || status != OK)
            pop(d, s);
        TRY(status);
        if (!done)
            return OK;
    }
    return OK;
}

static enum status advance_all(struct cpu_device *d)
{
    for (struct cpu_stream *s = d->streams; s != NULL && d->waiting > 0; s = s->next)
        TRY(advance(d, s));
    return OK;
}

/* Blocks until `s` has completed its first `at` works. */
static enum status finish_until(struct cpu_device *d, struct cpu_stream *s, uint64_t at)
{
    if (s->finished >= at)
        return OK;
    const int64_t begin_ns = clock_thread_ns();
    while (s->finished < at) {
        int64_t before = d->waiting;
        TRY(advance_all(d));
        // Any message of this rank may progress meanwhile; the first of `s` is the one that it waits for.
        if (d->waiting == before)
            work_sleep(s->queue[s->begin]);
    }
    d->idle_ns += clock_thread_ns() - begin_ns;
    return OK;
}

static int64_t cpu_compute_ns(const struct device *device)
{
    const struct cpu_device *d = device->state;
    return clock_thread_ns() - d->idle_ns + cpu_pool_ns(d->cpu.pool);
}

static uint64_t cpu_record(struct stream *stream)
{
    struct cpu_stream *s = stream->state;
    return s->finished + (uint64_t)(s->end - s->begin);
}

static enum status cpu_sync(struct event event)
{
    return finish_until(device_of(event.stream), event.stream->state, event.at);
}

static enum status cpu_wait(struct stream *stream, struct event event)
{
    (void)stream; // synchronous: wait in the caller
    return cpu_sync(event);
}

static enum status cpu_submit(struct stream *stream, const struct op *op)
{
    TRY(finish_until(device_of(stream), stream->state, cpu_record(stream)));
    cpu_run(stream->device, op);
    return advance_all(device_of(stream));
}

static enum status cpu_submit_work(struct stream *stream, struct work *work)
{
    struct cpu_stream *s = stream->state;
    if (s->end == s->capacity && s->begin > 0) {
        memmove(s->queue, s->queue + s->begin, (size_t)(s->end - s->begin) * sizeof *s->queue);
        s->end -= s->begin;
        s->begin = 0;
    } else if (s->end == s->capacity) {
        int64_t capacity = s->capacity == 0 ? 16 : 2 * s->capacity;
        s->queue = memory_resized(s->queue, (size_t)capacity, sizeof *s->queue, "the queue of a stream");
        s->capacity = capacity;
    }
    s->queue[s->end++] = work;
    device_of(stream)->waiting++;
    return advance(device_of(stream), s);
}

/* A mark of time after messages that are still in flight: takes its turn like one. */
struct mark_work {
    struct work work; // first
    int64_t *at_ns;
};

static enum status pass_mark(struct work *work)
{
    *((struct mark_work *)work)->at_ns = clock_ns();
    return OK;
}

static enum status end_mark(struct work *work, bool *done)
{
    free(work);
    *done = true;
    return OK;
}

static void never_sleep(struct work *work)
{
    (void)work;
}

static enum status cpu_set_mark(void *state, int index, struct stream *stream)
{
    struct host_marks *marks = state;
    const struct cpu_stream *s = stream->state;
    marks->at_ns[index] = s->begin == s->end ? clock_ns() : 0;
    if (s->begin == s->end)
        return OK;
    struct mark_work *mark = memory_zeroed(1, sizeof *mark, "a mark of time");
    *mark = (struct mark_work){
        .work = {.start = pass_mark, .poll = end_mark, .sleep = never_sleep, .name = "mark of time"},
        .at_ns = &marks->at_ns[index],
    };
    return cpu_submit_work(stream, &mark->work);
}

static const struct time_mark_ops cpu_time_marks = {
    .open = host_marks_open,
    .close = host_marks_close,
    .set = cpu_set_mark,
    .between = host_marks_between,
};

const struct device_ops device_cpu = {
    .traits = &device_traits_cpu,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .host_page_out = cpu_host_page_out,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .submit = cpu_submit,
    .submit_work = cpu_submit_work,
    .record = cpu_record,
    .wait = cpu_wait,
    .sync = cpu_sync,
    .check_algorithms = device_no_algorithms,
    .choices = device_no_choices,
    .vendor_copy = device_no_vendor_copy,
    .compute_ns = cpu_compute_ns,
    .time_marks = &cpu_time_marks,
    .range = device_no_range,
    .replay = device_call_body,
    .replay_end = device_no_replay_end,
};
