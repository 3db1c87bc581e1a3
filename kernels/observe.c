// SPDX-License-Identifier: Apache-2.0
#include "kernels/observe.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>

struct observed_device {
    struct device_ops ops; // the table of the device while it is observed
    const struct device_ops *inner;
    struct observers observers;
    int depth; // of nested submits: only the outermost op was enqueued by the program
};

/* ---- lists of observers ---- */

enum status observers_add(struct observers *observers, struct observer observer)
{
    if (observers->count == OBSERVERS)
        return fail(BAD_ARGUMENT, "there are %d observers already", OBSERVERS);
    observers->list[observers->count++] = observer;
    observers->needs_time = observers->needs_time || !observer.ignores_time;
    observers->see_enqueued = observers->see_enqueued || observer.sees_enqueued;
    return OK;
}

void observers_notify(const struct observers *observers, struct observation observation)
{
    observation.who = rank_context();
    observation.at_ns = observers->needs_time ? clock_ns() : 0;
    for (int i = 0; i < observers->count; i++)
        if (!observation.enqueued || observers->list[i].sees_enqueued)
            observers->list[i].notify(observers->list[i].context, &observation);
}

enum status observers_enqueued(const struct observers *observers, struct observation observation,
                               enum status status)
{
    observation.enqueued = true;
    if (status == OK && observers->see_enqueued)
        observers_notify(observers, observation);
    return status;
}

/* ---- the observed table ---- */

static const struct device_ops *inner_of(const struct device *device)
{
    return device->observed->inner;
}

static void notify_stream(const struct stream *stream, struct observation observation)
{
    observation.stream = stream;
    observers_notify(&stream->device->observed->observers, observation);
}

static void notify_memory(const struct device *device, enum observed what, struct observed_memory memory)
{
    observers_notify(&device->observed->observers, (struct observation){.what = what, .memory = memory});
}

static enum status observed_submit(struct stream *stream, const struct op *op)
{
    struct observed_device *observed = stream->device->observed;
    const struct observation seen = {.what = OBSERVED_OP, .stream = stream, .op = op};
    if (observed->depth == 0)
        observers_notify(&observed->observers, seen);
    observed->depth++;
    enum status status = observed->inner->submit(stream, op);
    observed->depth--;
    return observed->depth == 0 ? observers_enqueued(&observed->observers, seen, status) : status;
}

static uint64_t observed_record(struct stream *stream)
{
    uint64_t at = inner_of(stream->device)->record(stream);
    struct event event = {.stream = stream, .at = at};
    notify_stream(stream, (struct observation){.what = OBSERVED_RECORD, .event = event});
    return at;
}

static enum status observed_wait(struct stream *stream, struct event event)
{
    const struct observers *observers = &stream->device->observed->observers;
    const struct observation seen = {.what = OBSERVED_WAIT, .stream = stream, .event = event};
    observers_notify(observers, seen);
    return observers_enqueued(observers, seen, inner_of(stream->device)->wait(stream, event));
}

static enum status observed_alloc(struct device *device, enum part part, size_t bytes, void **out)
{
    // The reason for a failure may be in fail_text(): nothing is called after it.
    enum status status = inner_of(device)->alloc(device, part, bytes, out);
    if (status == OK)
        notify_memory(device, OBSERVED_ALLOC, (struct observed_memory){part, bytes, *out});
    return status;
}

static void observed_free(struct device *device, enum part part, void *data, size_t bytes)
{
    notify_memory(device, OBSERVED_FREE, (struct observed_memory){part, bytes, data});
    inner_of(device)->free(device, part, data, bytes);
}

static enum status observed_host_alloc(struct device *device, size_t bytes, void **out)
{
    enum status status = inner_of(device)->host_alloc(device, bytes, out);
    if (status == OK)
        notify_memory(device, OBSERVED_ALLOC, (struct observed_memory){PART_HOST, bytes, *out});
    return status;
}

static void observed_host_free(struct device *device, void *data, size_t bytes)
{
    notify_memory(device, OBSERVED_FREE, (struct observed_memory){PART_HOST, bytes, data});
    inner_of(device)->host_free(device, data, bytes);
}

static void observed_range(struct device *device, const char *name)
{
    observers_notify(&device->observed->observers,
                     (struct observation){.what = OBSERVED_RANGE, .range = name});
    if (inner_of(device)->range != NULL)
        inner_of(device)->range(device, name);
}

/* Frees the memory of the backend last: closing may free buffers, which is reported. */
static void observed_close(struct device *device)
{
    struct observed_device *observed = device->observed;
    observed->inner->close(device);
    device->ops = observed->inner;
    device->observed = NULL;
    free(observed);
}

/* ---- attaching ---- */

static enum status wrap(struct device *device)
{
    struct observed_device *observed = memory_zeroed(1, sizeof *observed, "the observers of a device");
    observed->inner = device->ops;
    observed->ops = *device->ops;
    observed->ops.close = observed_close;
    observed->ops.alloc = observed_alloc;
    observed->ops.free = observed_free;
    observed->ops.host_alloc = observed_host_alloc;
    observed->ops.host_free = observed_host_free;
    observed->ops.submit = observed_submit;
    observed->ops.record = observed_record;
    observed->ops.wait = observed_wait;
    observed->ops.range = observed_range;
    device->observed = observed;
    device->ops = &observed->ops;
    return OK;
}

enum status device_observe(struct device *device, struct observer observer)
{
    if (device->observed == NULL)
        TRY(wrap(device));
    return observers_add(&device->observed->observers, observer);
}
