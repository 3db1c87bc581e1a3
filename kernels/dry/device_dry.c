// SPDX-License-Identifier: Apache-2.0
/* The dry device: the program runs, but nothing is computed. Allocation returns addresses without backing
 * memory, ops do nothing, reads return zeros; an observer (observe.h) sees all of them. The plan of a run is
 * therefore the run itself, and cannot drift from it. It also allocates the scratch memory of the simulated
 * device: the cpu's one buffer for all streams, or the cuda device's per stream, and that of its message
 * reductions. Addresses follow the allocation rule of the cuda device's pool, so the high-water mark is the
 * required pool size.
 *
 * Caution: an address from here can be offset (a view of rows), but never dereferenced. They begin in a
 * range that no processor maps, so dereferencing one ends the program at once. */
#include "kernels/dry/device_dry.h"

#include "base/memory.h"
#include "kernels/device_plan.h"
#include "kernels/first_fit.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ADDRESS ((uintptr_t)1 << (sizeof(uintptr_t) * 8 - 8))
#define MAX_BYTES     ((size_t)FIRST_ADDRESS / 4) // of the device; the same amount follows for the host
#define HOST_ADDRESS  (FIRST_ADDRESS + 2 * MAX_BYTES)

struct dry_device {
    struct device_options options;
    bool is_gpu; // simulates one: scratch is per stream
    struct first_fit *memory, *host;
    struct buffer scratch; // grows as the cpu's does
};

struct dry_stream {
    struct buffer scratch, message; // of a GPU
    uint64_t records;               // events so far: they are distinct for observers
};

static struct dry_device *dry_of(const struct device *device)
{
    return device->state;
}

static enum status dry_open(struct device *device, const struct device_options *options);

/* An observer replaces the ops table, but not this entry. */
static bool is_dry(const struct device *device)
{
    return device->ops->open == dry_open;
}

const char *planning_device_name(void)
{
    return device_traits_dry.name;
}

size_t device_planned_bytes(const struct device *device)
{
    return !is_dry(device) ? 0 : first_fit_high_water(dry_of(device)->memory);
}

static void close_state(struct dry_device *state)
{
    first_fit_destroy(state->memory);
    first_fit_destroy(state->host);
    free(state);
}

static enum status dry_open(struct device *device, const struct device_options *options)
{
    struct dry_device *state = memory_zeroed(1, sizeof *state, "a dry device");
    state->options = *options;
    state->is_gpu = options->simulated_device != NULL && device_traits(options->simulated_device)->is_gpu;
    state->memory = first_fit_create();
    state->host = first_fit_create();
    first_fit_add(state->memory, (void *)FIRST_ADDRESS, MAX_BYTES);
    first_fit_add(state->host, (void *)HOST_ADDRESS, MAX_BYTES);
    device->has_epilogues =
        state->is_gpu && options->kernels.epilogues == EPILOGUES_AUTO && options->nondeterministic;
    device->state = state;
    return OK;
}

static void dry_close(struct device *device)
{
    buffer_free(&dry_of(device)->scratch);
    close_state(device->state);
}

static enum status dry_alloc(struct device *device, enum part part, size_t bytes, void **out)
{
    (void)part;
    *out = first_fit_alloc(dry_of(device)->memory, bytes);
    return *out != NULL ? OK : NO_MEMORY;
}

static void dry_free(struct device *device, enum part part, void *data, size_t bytes)
{
    (void)part;
    (void)bytes;
    first_fit_free(dry_of(device)->memory, data);
}

static enum status dry_host_alloc(struct device *device, size_t bytes, void **out)
{
    *out = first_fit_alloc(dry_of(device)->host, bytes);
    return *out != NULL ? OK : fail(NO_MEMORY, "%zu bytes exceed any host's memory", bytes);
}

static void dry_host_free(struct device *device, void *data, size_t bytes)
{
    (void)bytes;
    first_fit_free(dry_of(device)->host, data);
}

static void dry_host_page_out(void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}

static enum status dry_stream_open(struct stream *stream)
{
    stream->state = memory_zeroed(1, sizeof(struct dry_stream), "a stream");
    return OK;
}

static void dry_stream_close(struct stream *stream)
{
    struct dry_stream *s = stream->state;
    buffer_free(&s->scratch);
    buffer_free(&s->message);
    free(s);
}

/* Frees the old buffer before allocating the new one, as the simulated devices do. */
static enum status grow(struct device *device, enum part part, size_t bytes, struct buffer *buffer)
{
    if (bytes <= buffer->bytes)
        return OK;
    buffer_free(buffer);
    return buffer_alloc(device, part, bytes, buffer);
}

/* Tuning of algorithms uses a separate output buffer (cuda/gemm_choose.c); tuning of epilogues, a separate
 * buffer for accumulated outputs (cuda/gemm_epilogue.c). */
static enum status count_trial(struct device *device, const struct op *op)
{
    struct buffer result = {0};
    if (op->kind != OP_GEMM || (dry_of(device)->options.kernels.matmul_algorithms == NULL &&
                                op->gemm.epilogue.bias_gradient.data == NULL))
        return OK;
    struct tensor c = op->gemm.c;
    size_t span = (size_t)((c.dim[0] - 1) * c.stride[0] + c.dim[1]) * dtype_bytes(c.dtype);
    TRY(buffer_alloc(device, PART_WORKSPACE, span, &result));
    buffer_free(&result);
    return OK;
}

static enum status count_scratch(struct stream *stream, const struct op *op)
{
    struct dry_device *state = dry_of(stream->device);
    struct dry_stream *s = stream->state;
    size_t bytes = op_scratch_bytes(op, &state->options);
    TRY(grow(stream->device, PART_WORKSPACE, bytes, state->is_gpu ? &s->scratch : &state->scratch));
    return state->is_gpu ? count_trial(stream->device, op) : OK;
}

bool stream_needs_sum_scratch(const struct stream *stream)
{
    const struct dry_device *state = dry_of(stream->device);
    return is_dry(stream->device) && state->is_gpu && !state->options.nondeterministic;
}

enum status stream_plan_message(struct stream *stream, size_t bytes)
{
    struct dry_stream *s = stream->state;
    if (!is_dry(stream->device) || !dry_of(stream->device)->is_gpu)
        return OK;
    return grow(stream->device, PART_COMMUNICATION, bytes, &s->message);
}

/* With timed epilogues, the op is valid as a fused op, but counted as its separate ops. */
static enum status count_in_parts(struct stream *stream, const struct op *op)
{
    struct gemm alone = op->gemm;
    alone.epilogue = (struct epilogue){0};
    TRY(count_trial(stream->device, op));
    TRY(gemm(stream, alone));
    return gemm_epilogue(stream, op->gemm);
}

static enum status dry_submit(struct stream *stream, const struct op *op)
{
    if (op->kind == OP_GEMM && !epilogue_is_none(&op->gemm.epilogue))
        return count_in_parts(stream, op);
    if (op->kind == OP_TO_HOST && (uintptr_t)op->transfer.to < FIRST_ADDRESS)
        memset(op->transfer.to, 0, op->transfer.bytes);
    return count_scratch(stream, op);
}

static enum status dry_submit_work(struct stream *stream, struct work *work)
{
    (void)stream;
    TRY(work->start(work));
    for (;;) {
        bool done = false;
        TRY(work->poll(work, &done));
        if (done)
            return OK;
        work->sleep(work);
    }
}

static uint64_t dry_record(struct stream *stream)
{
    struct dry_stream *s = stream->state;
    return ++s->records;
}

static enum status dry_wait(struct stream *stream, struct event event)
{
    (void)stream;
    (void)event;
    return OK;
}

static enum status dry_sync(struct event event)
{
    (void)event;
    return OK;
}

const struct device_ops device_dry = {
    .traits = &device_traits_dry,
    .open = dry_open,
    .close = dry_close,
    .alloc = dry_alloc,
    .free = dry_free,
    .host_alloc = dry_host_alloc,
    .host_free = dry_host_free,
    .host_page_out = dry_host_page_out,
    .stream_open = dry_stream_open,
    .stream_close = dry_stream_close,
    .submit = dry_submit,
    .submit_work = dry_submit_work,
    .record = dry_record,
    .wait = dry_wait,
    .sync = dry_sync,
    .check_algorithms = device_no_algorithms,
    .choices = device_no_choices,
    .vendor_copy = device_no_vendor_copy,
    .compute_ns = device_host_ns,
    .time_marks = &device_no_time_marks,
    .range = device_no_range,
    .replay = device_call_body,
    .replay_end = device_no_replay_end,
};
