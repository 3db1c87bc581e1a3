// SPDX-License-Identifier: Apache-2.0
/* The dry device: the program runs, and nothing is computed. Allocation hands out addresses that no
 * memory is behind, ops are counted, reading gives zeros. So the plan of a run is the run itself, and cannot
 * drift from it. Scratch that the cpu device would take for an op is taken here too.
 *
 * The trap: an address from here may be moved along (a view of rows), never followed. They begin where no
 * processor maps a program, so following one ends the program at once. */
#include "kernels/dry/device_dry.h"

#include "kernels/cpu/cpu.h"
#include "kernels/dry/dry.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ADDRESS ((uintptr_t)1 << (sizeof(uintptr_t) * 8 - 8))

struct dry_device {
    uintptr_t next_address;
    struct dry_counts counts;
    struct buffer scratch; // grows as the cpu's does
};

const struct dry_counts *dry_counts(const struct device *device)
{
    if (device->ops != &device_dry)
        return NULL;
    return &((const struct dry_device *)device->state)->counts;
}

static enum status dry_open(struct device *device, const struct device_options *options)
{
    (void)options;
    struct dry_device *state = calloc(1, sizeof *state);
    if (state == NULL)
        return fail(NO_MEMORY, "no memory for a dry device");
    state->next_address = FIRST_ADDRESS;
    device->state = state;
    return OK;
}

static void dry_close(struct device *device)
{
    struct dry_device *state = device->state;
    buffer_free(&state->scratch);
    free(state);
}

static enum status dry_alloc(struct device *device, size_t bytes, void **out)
{
    struct dry_device *state = device->state;
    if (bytes > UINTPTR_MAX / 2 - state->next_address)
        return NO_MEMORY;
    *out = (void *)state->next_address;
    state->next_address += bytes + 64; // two buffers never touch
    return OK;
}

static void dry_free(struct device *device, void *data, size_t bytes)
{
    (void)device;
    (void)data;
    (void)bytes;
}

static void dry_rest(void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}

static enum status dry_stream_open(struct stream *stream)
{
    (void)stream;
    return OK;
}

static void dry_stream_close(struct stream *stream)
{
    (void)stream;
}

static enum status count_scratch(struct device *device, const struct op *op)
{
    struct dry_device *state = device->state;
    size_t bytes = cpu_scratch_bytes(op, device->threads);
    if (bytes <= state->scratch.bytes)
        return OK;
    buffer_free(&state->scratch);
    return buffer_alloc(device, PART_WORKSPACE, bytes, &state->scratch);
}

static enum status dry_submit(struct stream *stream, const struct op *op)
{
    struct dry_device *state = stream->device->state;
    struct dry_count *counted = &state->counts.op[op->kind];
    struct op_cost cost = op_cost(op);
    counted->calls++;
    counted->flops += cost.flops;
    counted->bytes += cost.bytes;
    if (op->kind == OP_TO_HOST && (uintptr_t)op->transfer.to < FIRST_ADDRESS)
        memset(op->transfer.to, 0, op->transfer.bytes);
    return count_scratch(stream->device, op);
}

static enum status dry_submit_work(struct stream *stream, struct work *work)
{
    ((struct dry_device *)stream->device->state)->counts.works++;
    TRY(work->start(work));
    for (;;) {
        bool done = false;
        TRY(work->poll(work, &done));
        if (done)
            return OK;
        work->rest(work);
    }
}

static uint64_t dry_record(struct stream *stream)
{
    (void)stream;
    return 0;
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
    .name = "dry",
    .what = "computes nothing: counts every op, byte and message, for plans",
    .computes = false,
    .takes_cudnn = true,
    .has_matmul_options = true, // of the device that it stands for
    .open = dry_open,
    .close = dry_close,
    .alloc = dry_alloc,
    .free = dry_free,
    .host_alloc = dry_alloc,
    .host_free = dry_free,
    .host_rest = dry_rest,
    .stream_open = dry_stream_open,
    .stream_close = dry_stream_close,
    .submit = dry_submit,
    .submit_work = dry_submit_work,
    .record = dry_record,
    .wait = dry_wait,
    .sync = dry_sync,
};
