// SPDX-License-Identifier: Apache-2.0
/* Opening devices, memory accounting, and the validated functions of device.h. Computation is in the device's
 * ops table. */
#include "kernels/device.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/device_cpu.h"
#include "kernels/cuda/runtime/device_cuda.h"
#include "kernels/cuda/runtime/scratch.h"
#include "kernels/dry/device_dry.h"
#include "kernels/ops.h"
#include "kernels/strict/device_strict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const part_names[] = {
    [PART_WEIGHTS] = "weights",
    [PART_MASTERS] = "masters",
    [PART_GRADIENTS] = "gradients",
    [PART_MOMENTS] = "moments",
    [PART_ACTIVATIONS] = "activations",
    [PART_BUCKETS] = "buckets",
    [PART_COMMUNICATION] = "communication",
    [PART_WORKSPACE] = "workspace",
    [PART_DATA] = "data",
    [PART_SNAPSHOT] = "snapshot",
    [PART_HOST] = "host",
};
_Static_assert(sizeof part_names / sizeof *part_names == PART_COUNT, "one name per part");

const char *part_name(enum part part)
{
    return (int)part >= 0 && part < PART_COUNT ? part_names[part] : "?";
}

bool part_is_on_host(enum part part)
{
    return part == PART_SNAPSHOT || part == PART_HOST;
}

/* Offload memory, and on a GPU pinned memory for a snapshot. */
static bool uses_host_alloc(const struct device *device, enum part part)
{
    const struct device_traits *traits = device->ops->traits;
    return part == PART_HOST || (part == PART_SNAPSHOT && (traits->is_gpu || !traits->has_host_memory));
}

/* ---- entries of a backend that lacks something ---- */

enum status device_no_algorithms(const char *path)
{
    (void)path;
    return OK;
}

void device_no_choices(const struct device *device, struct text *out)
{
    (void)device;
    (void)out;
}

enum status device_no_vendor_copy(struct stream *stream, void *to, const void *from, size_t bytes)
{
    (void)to;
    (void)from;
    (void)bytes;
    return fail(NOT_SUPPORTED, "device %s has no copy of a vendor", device_name(stream->device));
}

int64_t device_host_ns(const struct device *device)
{
    (void)device;
    return clock_ns() - progress_waited_ns();
}

static enum status no_clock(struct device *device, int count, void **out)
{
    (void)count;
    (void)out;
    return fail(NOT_SUPPORTED, "device \"%s\" has no clock", device_name(device));
}

const struct time_mark_ops device_no_time_marks = {.open = no_clock};

void device_no_range(struct device *device, const char *name)
{
    (void)device;
    (void)name;
}

enum status device_call_body(struct stream *stream, void **state, enum status (*body)(void *context),
                             void *context)
{
    (void)stream;
    (void)state;
    return body(context);
}

void device_no_replay_end(void *state)
{
    (void)state;
}

/* ---- devices ---- */

/* Rejects incomplete backends: a missing function would otherwise fail in the middle of a run. */
static enum status check_table(const struct device_ops *ops)
{
    const struct {
        const char *name;
        bool there;
    } entries[] = {
        {"traits", ops->traits != NULL && ops->traits->name != NULL && ops->traits->summary != NULL},
        {"open", ops->open != NULL},
        {"close", ops->close != NULL},
        {"alloc", ops->alloc != NULL},
        {"free", ops->free != NULL},
        {"host_alloc", ops->host_alloc != NULL},
        {"host_free", ops->host_free != NULL},
        {"host_page_out", ops->host_page_out != NULL},
        {"stream_open", ops->stream_open != NULL},
        {"stream_close", ops->stream_close != NULL},
        {"submit", ops->submit != NULL},
        {"submit_work", ops->submit_work != NULL},
        {"record", ops->record != NULL},
        {"wait", ops->wait != NULL},
        {"sync", ops->sync != NULL},
        {"check_algorithms", ops->check_algorithms != NULL},
        {"choices", ops->choices != NULL},
        {"vendor_copy", ops->vendor_copy != NULL},
        {"compute_ns", ops->compute_ns != NULL},
        {"time_marks", ops->time_marks != NULL},
        {"range", ops->range != NULL},
        {"replay", ops->replay != NULL},
        {"replay_end", ops->replay_end != NULL},
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (!entries[i].there)
            return fail(BAD_ARGUMENT, "device \"%s\" does not provide %s",
                        ops->traits != NULL && ops->traits->name != NULL ? ops->traits->name : "?",
                        entries[i].name);
    }
    return OK;
}

enum status device_open_with(const struct device_ops *ops, const struct device_options *options,
                             struct device **out)
{
    TRY(check_table(ops));
    if (options->threads < 1)
        return fail(BAD_ARGUMENT, "device \"%s\" needs at least one thread, not %d", ops->traits->name,
                    options->threads);
    struct device *device = memory_zeroed(1, sizeof *device, "a device");
    device->ops = ops;
    device->threads = options->threads;
    device->poisons = ops->traits->poisons || (options->simulated_device != NULL &&
                                               device_traits(options->simulated_device)->poisons);
    enum status status = ops->open(device, options);
    if (status == OK)
        *out = device;
    else
        free(device);
    return status;
}

enum status device_open(const struct device_options *options, struct device **out)
{
    if (device_is_built(options->name))
        return device_open_with(device_traits(options->name)->ops, options, out);
    struct text known = {0};
    const char *names[MAX_DEVICES];
    size_t count = 0;
    for (size_t i = 0; device_at(i) != NULL && count < MAX_DEVICES; i++)
        if (device_at(i)->ops != NULL) {
            names[count] = device_at(i)->name;
            text_add(&known, "%s%s", count > 0 ? ", " : "", names[count]);
            count++;
        }
    const char *nearest = nearest_name(options->name, names, count);
    enum status status =
        fail(NOT_SUPPORTED, "this build has no device \"%s\"%s%s%s; it has %s", options->name,
             nearest != NULL ? " (did you mean \"" : "", nearest != NULL ? nearest : "",
             nearest != NULL ? "\"?)" : "", text_chars(&known));
    text_free(&known);
    return status;
}

enum status device_check_algorithms(const char *name, const char *path)
{
    const struct device_ops *ops = device_traits(name)->ops;
    return ops == NULL ? OK : ops->check_algorithms(path);
}

size_t op_scratch_bytes(const struct op *op, const struct device_options *options)
{
    const char *kernels = options->simulated_device != NULL ? options->simulated_device : options->name;
    if (device_traits(kernels)->is_gpu)
        return cuda_planned_scratch_bytes(op, options->kernels.attention, options->nondeterministic);
    return cpu_scratch_bytes(op, options->threads);
}

void device_close(struct device *device)
{
    if (device == NULL)
        return;
    if (device->streams != 0)
        die(__FILE__, __LINE__, "device_close", "%d streams are still open", device->streams);
    device->ops->close(device); // frees its own workspace
    for (int part = 0; part < PART_COUNT; part++) {
        if (device->memory.now_bytes[part] != 0)
            die(__FILE__, __LINE__, "device_close", "%lld bytes of %s are still allocated",
                (long long)device->memory.now_bytes[part], part_name((enum part)part));
    }
    free(device);
}

const char *device_name(const struct device *device)
{
    return device->ops->traits->name;
}

bool device_computes(const struct device *device)
{
    return device->ops->traits->computes;
}

struct memory_use device_memory(const struct device *device)
{
    return device->memory;
}

static size_t rounded(size_t bytes)
{
    return bytes == 0 ? 64 : (bytes + 63) & ~(size_t)63;
}

/* Adds to the counters; `bytes` may be negative. */
static void count_memory(struct device *device, enum part part, int64_t bytes)
{
    struct memory_use *use = &device->memory;
    use->now_bytes[part] += bytes;
    CHECK(use->now_bytes[part] >= 0);
    if (use->now_bytes[part] > use->peak_bytes[part])
        use->peak_bytes[part] = use->now_bytes[part];
    int64_t total = 0;
    for (int p = 0; p < PART_COUNT; p++)
        total += part_is_on_host((enum part)p) ? 0 : use->now_bytes[p];
    if (total > use->peak_total_bytes)
        use->peak_total_bytes = total;
}

enum status buffer_alloc(struct device *device, enum part part, size_t bytes, struct buffer *out)
{
    if ((int)part < 0 || part >= PART_COUNT)
        return fail(BAD_ARGUMENT, "buffer_alloc: %d is not a part", (int)part);
    char size[NUMBER_CHARS];
    void *data = NULL;
    bool possible = bytes <= PTRDIFF_MAX - 64;
    enum status status = NO_MEMORY;
    if (possible && uses_host_alloc(device, part))
        TRY(status = device->ops->host_alloc(device, rounded(bytes), &data));
    else if (possible)
        status = device->ops->alloc(device, part, rounded(bytes), &data);
    if (status != OK) {
        bool reported = status == NO_DEVICE_MEMORY;
        return fail(status, "device \"%s\" has no memory for %s of %s%s%s", device->ops->traits->name,
                    bytes_text(bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes, size), part_name(part),
                    reported ? ": " : "", reported ? fail_text() : "");
    }
    count_memory(device, part, (int64_t)rounded(bytes));
    *out = (struct buffer){.device = device, .data = data, .bytes = bytes, .part = part};
    return OK;
}

void buffer_free(struct buffer *buffer)
{
    if (buffer->data == NULL)
        return;
    count_memory(buffer->device, buffer->part, -(int64_t)rounded(buffer->bytes));
    const struct device_ops *ops = buffer->device->ops;
    if (uses_host_alloc(buffer->device, buffer->part))
        ops->host_free(buffer->device, buffer->data, rounded(buffer->bytes));
    else
        ops->free(buffer->device, buffer->part, buffer->data, rounded(buffer->bytes));
    *buffer = (struct buffer){0};
}

void buffer_page_out(const struct buffer *buffer, size_t offset, size_t bytes)
{
    CHECK(buffer->part == PART_HOST && offset <= buffer->bytes && bytes <= buffer->bytes - offset);
    buffer->device->ops->host_page_out((char *)buffer->data + offset, bytes);
}

void device_choices(const struct device *device, struct text *out)
{
    device->ops->choices(device, out);
}

int64_t device_compute_ns(const struct device *device)
{
    return device->ops->compute_ns(device);
}

void device_range_begin(struct device *device, const char *name)
{
    device->ops->range(device, name);
}

void device_range_end(struct device *device)
{
    device->ops->range(device, NULL);
}

enum status stream_create(struct device *device, const char *name, struct stream **out)
{
    struct stream *stream = memory_zeroed(1, sizeof *stream, "a stream");
    stream->device = device;
    stream->name = name;
    enum status status = device->ops->stream_open(stream);
    if (status != OK) {
        free(stream);
        return status;
    }
    device->streams++;
    *out = stream;
    return OK;
}

void stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    // An error has no receiver here: a caller that needs it synchronizes first.
    enum status ignored = stream_sync(stream);
    (void)ignored;
    stream->device->ops->stream_close(stream);
    stream->device->streams--;
    free(stream);
}

struct device *stream_device(const struct stream *stream)
{
    return stream->device;
}

/* ---- marks of time ---- */

struct time_marks {
    const struct time_mark_ops *ops;
    int count;
    void *state; // owned by the backend
};

enum status time_marks_create(struct device *device, int count, struct time_marks **out)
{
    const struct time_mark_ops *ops = device->ops->time_marks;
    struct time_marks *marks = memory_zeroed(1, sizeof *marks, "marks of time");
    *marks = (struct time_marks){.ops = ops, .count = count};
    enum status status = ops->open(device, count, &marks->state);
    if (status == OK)
        *out = marks;
    else
        free(marks);
    return status;
}

void time_marks_destroy(struct time_marks *marks)
{
    if (marks == NULL)
        return;
    marks->ops->close(marks->state);
    free(marks);
}

enum status time_marks_set(struct time_marks *marks, int index, struct stream *stream)
{
    CHECK(index >= 0 && index < marks->count);
    if (stream->device->replaying != NULL) {
        stream->device->replay_violation = "a mark of time";
        return BAD_ARGUMENT;
    }
    return marks->ops->set(marks->state, index, stream);
}

double time_mark_between(struct time_mark from, struct time_mark to)
{
    CHECK(from.index >= 0 && from.index < from.marks->count && to.index >= 0 && to.index < to.marks->count);
    CHECK(from.marks->ops == to.marks->ops);
    return from.marks->ops->between(from.marks->state, from.index, to.marks->state, to.index);
}

/* ---- graph replay ---- */

struct graph {
    struct device *device;
    bool has_run;
    void *state; // owned by the backend
};

/* Records that a replayed body did something that a replay would skip; false: no body is running. */
static bool violates_replay(struct device *device, const char *what)
{
    if (device->replaying == NULL)
        return false;
    device->replay_violation = what;
    return true;
}

static enum status run_body(struct stream *stream, struct graph *graph, enum status (*body)(void *context),
                            void *context)
{
    if (graph->has_run)
        return stream->device->ops->replay(stream, &graph->state, body, context);
    graph->has_run = true;
    return body(context);
}

enum status stream_replay(struct stream *stream, struct graph **graph, enum status (*body)(void *context),
                          void *context)
{
    struct device *device = stream->device;
    if (device->replaying != NULL)
        return fail(BAD_ARGUMENT, "stream %s: a replay inside one of stream %s", stream->name,
                    device->replaying->name);
    if (*graph == NULL)
        *graph = memory_zeroed(1, sizeof **graph, "a graph");
    (*graph)->device = device;
    device->replay_violation = NULL;
    device->replaying = stream;
    enum status status = run_body(stream, *graph, body, context);
    device->replaying = NULL;
    if (device->replay_violation == NULL)
        return status;
    return fail(BAD_ARGUMENT, "stream %s: the body to be replayed has %s, which a replay would skip",
                stream->name, device->replay_violation);
}

void graph_destroy(struct graph *graph)
{
    if (graph != NULL && graph->state != NULL)
        graph->device->ops->replay_end(graph->state);
    free(graph);
}

/* ---- events ---- */

struct event stream_record(struct stream *stream)
{
    if (violates_replay(stream->device, "an event"))
        return (struct event){0};
    return (struct event){.stream = stream, .at = stream->device->ops->record(stream)};
}

enum status stream_wait(struct stream *stream, struct event event)
{
    if (event.stream == NULL || event.stream == stream)
        return OK; // already complete, or ordered by this stream
    if (event.stream->device != stream->device)
        return fail(BAD_ARGUMENT, "stream %s cannot wait for stream %s of another device", stream->name,
                    event.stream->name);
    if (violates_replay(stream->device, "a wait"))
        return BAD_ARGUMENT;
    return stream->device->ops->wait(stream, event);
}

enum status event_sync(struct event event)
{
    if (event.stream == NULL)
        return OK;
    return violates_replay(event.stream->device, "a wait of the host")
               ? BAD_ARGUMENT
               : event.stream->device->ops->sync(event);
}

enum status stream_vendor_copy(struct stream *stream, void *to, const void *from, size_t bytes)
{
    return stream->device->ops->vendor_copy(stream, to, from, bytes);
}

enum status stream_sync(struct stream *stream)
{
    return event_sync(stream_record(stream));
}

static enum status transfer(struct stream *stream, enum op_kind kind, void *to, const void *from,
                            size_t bytes)
{
    if (bytes == 0)
        return OK;
    if (to == NULL || from == NULL)
        return fail(BAD_ARGUMENT, "%s: %zu bytes %s NULL", op_name(kind), bytes, to == NULL ? "to" : "from");
    if (violates_replay(stream->device, op_name(kind)))
        return BAD_ARGUMENT;
    const struct op op = {.kind = kind, .transfer = {.to = to, .from = from, .bytes = bytes}};
    return stream->device->ops->submit(stream, &op);
}

enum status copy_to_device(struct stream *stream, void *device_data, const void *host, size_t bytes)
{
    return transfer(stream, OP_TO_DEVICE, device_data, host, bytes);
}

enum status copy_to_host(struct stream *stream, void *host, const void *device_data, size_t bytes)
{
    return transfer(stream, OP_TO_HOST, host, device_data, bytes);
}

enum status stream_submit_work(struct stream *stream, struct work *work)
{
    if (work == NULL || work->start == NULL || work->poll == NULL || work->sleep == NULL ||
        work->name == NULL)
        return fail(BAD_ARGUMENT, "stream %s: a work needs start, poll, sleep and a name", stream->name);
    work->recorded = progress_take();
    // Ownership passes even on failure.
    enum status status = stream->device->ops->submit_work(stream, work);
    return violates_replay(stream->device, "a message") ? BAD_ARGUMENT : status;
}

enum status work_start(struct work *work)
{
    progress_started(work->recorded);
    return work->start(work);
}

enum status work_poll(struct work *work, bool *done)
{
    const struct progress_range recorded = work->recorded; // a work that is done has been freed
    TRY(work->poll(work, done));
    if (!*done)
        return OK;
    progress_done(recorded);
    rank_context_set_wait("");
    return OK;
}

void work_sleep(struct work *work)
{
    int64_t begin_ns = clock_ns();
    rank_context_set_wait_for(work->name, work->recorded);
    work->sleep(work);
    progress_waited(clock_ns() - begin_ns);
}
