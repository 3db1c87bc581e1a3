// SPDX-License-Identifier: Apache-2.0
/* The strict device: the cpu device with maximal asynchrony, so that errors which a GPU shows only sometimes
 * are reproducible here.
 *
 *   - A stream is a list of entries (ops, works, waits) that run as late as permitted: when the host
 *     synchronizes, and then only those that it waits for. A missing stream_wait reads the previous contents.
 *   - The previous contents are NaN: fresh memory is all one bits, and so is freed memory, and memory after
 *     poison(). Freed memory is not reused until every stream is empty, so a late op reliably reads NaN.
 *   - copy_to_device reads host memory late, which detects a host buffer that is reused too early.
 *
 *     host:     op a on X; record e; wait(Y, e); work b on Y; op c on X; event_sync(Y) -> runs a, b; not c
 *
 * Absence of deadlocks that a GPU would not have. On a GPU, submitted work runs without the host, so a
 * correct program may rely on this: while a host blocks, all its streams progress as far as their own
 * order and their waits permit. strict gives the same guarantee, but runs no more than it needs to:
 * drive() first runs only the requested entries; when all of those depend on incomplete works (a peer is
 * late, or itself blocked on a message that is later in another stream of ours), it requests every stream
 * up to its last work. Entries after the last works cannot help a peer and remain deferred. Every message
 * that this rank has submitted is therefore posted as soon as its own predecessors are complete. Suppose
 * ranks are stuck forever, and follow the dependencies of any blocked entry: a work depends on its peer's
 * work, which depends on the entries before it; a wait depends on the entries before its event. If the
 * chain ends, it ends at an entry that some host has not yet submitted, because that host is blocked in a
 * sync (and the chain continues from there); so it is a cycle, and a cycle is a deadlock on a GPU as well.
 * A wait alone cannot close it: events are recorded before they are waited for. */
#include "kernels/strict/device_strict.h"

#include "base/clock.h"
#include "base/memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/host_marks.h"

#include <stdlib.h>
#include <string.h>

enum entry_kind { ENTRY_OP, ENTRY_WORK, ENTRY_WAIT, ENTRY_MARK };

struct entry {
    enum entry_kind kind;
    bool started; // a work
    union {
        struct op *op; // owned
        struct work *work;
        int64_t *mark_ns;
        struct {
            struct strict_stream *stream;
            uint64_t at;
        } wait;
    };
};

struct strict_stream {
    struct strict_stream *next; // list of the device's streams
    struct entry *entries;      // entries [done, appended), the first at index `begin`
    int64_t begin, capacity;
    uint64_t done, appended;
    uint64_t requested; // entries below this number are requested: run now
    uint64_t last_work; // one past the number of the last work submitted
};

/* Memory freed while entries were pending on a stream. */
struct freed {
    struct freed *next;
    void *data;
};

struct strict_device {
    struct cpu_state cpu; // first: cpu_parallel() relies on it
    struct strict_stream *streams;
    struct freed *freed;
};

static struct strict_device *device_of(struct stream *stream)
{
    return stream->device->state;
}

/* All one bits are NaN in fp32 and fp64, and -1 as an index. */
static void make_nan(void *data, size_t bytes)
{
    memset(data, 0xff, bytes);
}

static void run_poison(struct tensor t)
{
    if (t.ndim == 2 && !tensor_is_dense(t)) {
        for (int64_t r = 0; r < t.dim[0]; r++) {
            struct tensor row = tensor_rows(t, r, r + 1);
            make_nan(row.data, tensor_bytes(row));
        }
    } else {
        make_nan(t.data, tensor_bytes(t));
    }
}

static bool all_streams_empty(const struct strict_device *d)
{
    for (const struct strict_stream *s = d->streams; s != NULL; s = s->next) {
        if (s->done < s->appended)
            return false;
    }
    return true;
}

static void release_freed(struct strict_device *d)
{
    while (d->freed != NULL) {
        struct freed *freed = d->freed;
        d->freed = freed->next;
        free(freed->data);
        free(freed);
    }
}

/* Entries */

static void request(struct strict_stream *s, uint64_t at)
{
    if (s->requested < at)
        s->requested = at;
}

static enum status run_work(struct entry *entry, bool *done)
{
    if (!entry->started) {
        entry->started = true;
        enum status status = work_start(entry->work);
        if (status != OK)
            return status;
    }
    return work_poll(entry->work, done);
}

/* Runs the first entry of `s` if it is ready. An error also ends the entry. */
static enum status run_first(struct device *device, struct strict_stream *s, bool *done)
{
    struct entry *entry = &s->entries[s->begin];
    enum status status = OK;
    *done = false;
    switch (entry->kind) {
    case ENTRY_OP:
        if (entry->op->kind == OP_POISON)
            run_poison(entry->op->poison.out);
        else
            cpu_run(device, entry->op);
        free(entry->op);
        *done = true;
        break;
    case ENTRY_WORK:
        status = run_work(entry, done);
        break;
    case ENTRY_WAIT:
        *done = entry->wait.stream->done >= entry->wait.at;
        if (!*done)
            request(entry->wait.stream, entry->wait.at);
        break;
    case ENTRY_MARK:
        *entry->mark_ns = clock_ns();
        *done = true;
        break;
    }
    if (*done || status != OK) {
        s->begin++;
        s->done++;
        if (s->done == s->appended)
            s->begin = 0;
    }
    return status;
}

/* Runs the requested entries of `s`, up to the first that is not ready. */
static enum status run_requested(struct device *device, struct strict_stream *s, bool *moved)
{
    bool done = true;
    while (done && s->done < s->requested) {
        TRY(run_first(device, s, &done));
        *moved = *moved || done;
    }
    return OK;
}

/* Requests every message of the device. Returns false if all had been requested before. */
static bool request_all_works(struct strict_device *d)
{
    bool more = false;
    for (struct strict_stream *s = d->streams; s != NULL; s = s->next) {
        more = more || s->requested < s->last_work;
        request(s, s->last_work);
    }
    return more;
}

/* The message that `s` waits for, perhaps through other streams; NULL: none has been started. */
static struct work *awaited_work(const struct strict_stream *s)
{
    while (s->done < s->appended && s->entries[s->begin].kind == ENTRY_WAIT)
        s = s->entries[s->begin].wait.stream;
    const struct entry *entry = s->done < s->appended ? &s->entries[s->begin] : NULL;
    return entry != NULL && entry->kind == ENTRY_WORK && entry->started ? entry->work : NULL;
}

/* Sleeps until a message of this rank may have progressed; preferably the one that `target` waits for. */
static void sleep_until_progress(struct strict_device *d, const struct strict_stream *target)
{
    struct work *awaited = awaited_work(target);
    if (awaited != NULL) {
        work_sleep(awaited);
        return;
    }
    for (struct strict_stream *s = d->streams; s != NULL; s = s->next) {
        if (s->done < s->appended && s->entries[s->begin].started) {
            work_sleep(s->entries[s->begin].work);
            return;
        }
    }
    die(__FILE__, __LINE__, "strict", "every stream waits for another one, and no message is in flight");
}

static enum status drive_until(struct device *device, struct strict_stream *target, uint64_t at)
{
    struct strict_device *d = device->state;
    request(target, at);
    while (target->done < at) {
        bool moved = false;
        uint64_t requested_before = 0, requested_after = 0;
        for (struct strict_stream *s = d->streams; s != NULL; s = s->next)
            requested_before += s->requested;
        for (struct strict_stream *s = d->streams; s != NULL; s = s->next)
            TRY(run_requested(device, s, &moved));
        for (struct strict_stream *s = d->streams; s != NULL; s = s->next)
            requested_after += s->requested;

        // A wait that made another stream requested is progress: run that stream before requesting more.
        if (!moved && requested_after == requested_before && !request_all_works(d))
            sleep_until_progress(d, target);
    }
    return OK;
}

/* Blocks until the first `at` entries of `target` are complete. */
static enum status drive(struct device *device, struct strict_stream *target, uint64_t at)
{
    struct strict_device *d = device->state;
    enum status status = drive_until(device, target, at);

    // Entries requested for this call only are deferred again.
    for (struct strict_stream *s = d->streams; s != NULL; s = s->next)
        s->requested = 0;
    if (all_streams_empty(d))
        release_freed(d);
    return status;
}

static void append(struct strict_stream *s, struct entry entry)
{
    int64_t count = (int64_t)(s->appended - s->done);
    if (s->begin + count == s->capacity) {
        int64_t capacity = count < s->capacity / 2 ? s->capacity : 2 * s->capacity + 16;
        struct entry *entries =
            memory_resized(NULL, (size_t)capacity, sizeof *entries, "the queue of a stream");
        if (count > 0)
            memcpy(entries, s->entries + s->begin, (size_t)count * sizeof *entries);
        free(s->entries);
        s->entries = entries;
        s->begin = 0;
        s->capacity = capacity;
    }
    s->entries[s->begin + count] = entry;
    s->appended++;
    if (entry.kind == ENTRY_WORK)
        s->last_work = s->appended;
}

/* The ops table */

static enum status strict_open(struct device *device, const struct device_options *options)
{
    (void)options;
    struct strict_device *state = memory_zeroed(1, sizeof *state, "a strict device");
    enum status status = cpu_state_open(device, &state->cpu);
    if (status == OK)
        device->state = state;
    else
        free(state);
    return status;
}

static void strict_close(struct device *device)
{
    struct strict_device *state = device->state;
    cpu_state_close(device, &state->cpu);
    release_freed(state);
    free(state);
}

static enum status strict_alloc(struct device *device, enum part part, size_t bytes, void **out)
{
    (void)part;
    (void)device;
    void *data = aligned_alloc(64, bytes); // already a multiple of 64
    if (data == NULL)
        return NO_MEMORY;
    make_nan(data, bytes);
    *out = data;
    return OK;
}

static void strict_free(struct device *device, enum part part, void *data, size_t bytes)
{
    (void)part;
    struct strict_device *state = device->state;
    make_nan(data, bytes);
    if (all_streams_empty(state)) {
        free(data);
        return;
    }
    struct freed *freed = memory_resized(NULL, 1, sizeof *freed, "a buffer to be freed");
    *freed = (struct freed){.next = state->freed, .data = data};
    state->freed = freed;
}

static enum status strict_stream_open(struct stream *stream)
{
    struct strict_stream *s = memory_zeroed(1, sizeof *s, "a stream");
    s->next = device_of(stream)->streams;
    device_of(stream)->streams = s;
    stream->state = s;
    return OK;
}

static void strict_stream_close(struct stream *stream)
{
    struct strict_stream *s = stream->state, **link = &device_of(stream)->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;

    // Pending only after an error. Waits for this stream's events can no longer be satisfied.
    for (uint64_t i = s->done; i < s->appended; i++) {
        struct entry *entry = &s->entries[s->begin + (int64_t)(i - s->done)];
        if (entry->kind == ENTRY_OP)
            free(entry->op);
    }
    for (struct strict_stream *other = device_of(stream)->streams; other != NULL; other = other->next) {
        for (uint64_t i = other->done; i < other->appended; i++) {
            struct entry *entry = &other->entries[other->begin + (int64_t)(i - other->done)];
            if (entry->kind == ENTRY_WAIT && entry->wait.stream == s)
                *entry = (struct entry){.kind = ENTRY_WAIT, .wait = {.stream = other, .at = 0}};
        }
    }
    free(s->entries);
    free(s);
}

static enum status strict_submit(struct stream *stream, const struct op *op)
{
    size_t bytes = 0;
    struct op *copy = op_copy(op, &bytes); // the caller's list may be gone when it runs
    if (copy == NULL)
        return fail(NO_MEMORY, "no memory for an op on stream %s", stream->name);
    append(stream->state, (struct entry){.kind = ENTRY_OP, .op = copy});
    return OK;
}

static enum status strict_submit_work(struct stream *stream, struct work *work)
{
    append(stream->state, (struct entry){.kind = ENTRY_WORK, .work = work});
    return OK;
}

static uint64_t strict_record(struct stream *stream)
{
    return ((struct strict_stream *)stream->state)->appended;
}

static enum status strict_wait(struct stream *stream, struct event event)
{
    append(stream->state,
           (struct entry){.kind = ENTRY_WAIT, .wait = {.stream = event.stream->state, .at = event.at}});
    return OK;
}

static enum status strict_sync(struct event event)
{
    return drive(event.stream->device, event.stream->state, event.at);
}

/* Not a work: it must not request the entries before it. */
static enum status strict_set_mark(void *state, int index, struct stream *stream)
{
    struct host_marks *marks = state;
    marks->at_ns[index] = 0;
    append(stream->state, (struct entry){.kind = ENTRY_MARK, .mark_ns = &marks->at_ns[index]});
    return OK;
}

static const struct time_mark_ops strict_time_marks = {
    .open = host_marks_open,
    .close = host_marks_close,
    .set = strict_set_mark,
    .between = host_marks_between,
};

const struct device_ops device_strict = {
    .traits = &device_traits_strict,
    .open = strict_open,
    .close = strict_close,
    .alloc = strict_alloc,
    .free = strict_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .host_page_out = cpu_host_page_out,
    .stream_open = strict_stream_open,
    .stream_close = strict_stream_close,
    .submit = strict_submit,
    .submit_work = strict_submit_work,
    .record = strict_record,
    .wait = strict_wait,
    .sync = strict_sync,
    .check_algorithms = device_no_algorithms,
    .choices = device_no_choices,
    .vendor_copy = device_no_vendor_copy,
    .compute_ns = device_host_ns,
    .time_marks = &strict_time_marks,
    .range = device_no_range,
    .replay = device_call_body,
    .replay_end = device_no_replay_end,
};
