// SPDX-License-Identifier: Apache-2.0
#include "tests/support/mirror.h"

#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ARRAYS = 512, MAX_OPEN = 16 };

struct host_array {
    char *host;
    size_t bytes;
    struct buffer copy; // {0}: not used by an op yet
};

/* A device that this process has opened for a mirror. Opening a GPU takes a context, libraries and 32 MiB of
 * pinned memory, and a test opens hundreds of mirrors: so it stays open, for later mirrors, until the process
 * ends. */
static struct open_device {
    struct device_options options;
    char name[16];         // of the options
    struct device *device; // NULL: free
    struct stream *stream;
} open_devices[MAX_OPEN];

struct mirror {
    struct device *device; // one of open_devices
    struct stream *stream;
    struct host_array array[MAX_ARRAYS];
    int arrays;
};

static struct mirror *mirror_of(struct device *device)
{
    return device->state;
}

static bool same_options(const struct device_options *a, const struct device_options *b)
{
    return strcmp(a->name, b->name) == 0 && a->threads == b->threads && a->index == b->index &&
           a->kernels.attention == b->kernels.attention && a->nondeterministic == b->nondeterministic &&
           a->kernels.tf32 == b->kernels.tf32 && a->kernels.epilogues == b->kernels.epilogues &&
           a->max_blocks == b->max_blocks;
}

/* The device with these options: reused, or newly opened. */
static enum status find_device(const struct device_options *options, struct open_device **out)
{
    CHECK(strlen(options->name) < sizeof open_devices->name && options->kernels.matmul_algorithms == NULL &&
          options->simulated_device == NULL && options->reserve_bytes == 0);
    int i = 0;
    while (open_devices[i].device != NULL && !same_options(&open_devices[i].options, options))
        CHECK(++i < MAX_OPEN);
    struct open_device *o = &open_devices[i];
    *out = o;
    if (o->device != NULL)
        return OK;
    o->options = *options;
    o->options.name = memcpy(o->name, options->name, strlen(options->name) + 1);
    TRY(device_open(options, &o->device));
    return stream_create(o->device, "test", &o->stream);
}

static enum status open_nothing(struct device *device, const struct device_options *options)
{
    struct mirror *m = calloc(1, sizeof *m);
    CHECK(m != NULL);
    device->state = m;
    struct open_device *o;
    TRY(find_device(options, &o));
    m->device = o->device;
    m->stream = o->stream;
    device->has_epilogues = m->device->has_epilogues;
    return OK;
}

static void close_all(struct device *device)
{
    struct mirror *m = mirror_of(device);
    for (int i = 0; i < m->arrays; i++)
        buffer_free(&m->array[i].copy);
    free(m);
}

static enum status host_alloc(struct device *device, size_t bytes, void **out)
{
    *out = aligned_alloc(64, bytes);
    if (*out == NULL)
        return NO_MEMORY;
    mirror_register(device, *out, bytes);
    return OK;
}

static void host_free(struct device *device, void *data, size_t bytes)
{
    (void)bytes;
    struct mirror *m = mirror_of(device);
    for (int i = 0; i < m->arrays; i++)
        if (m->array[i].host == (char *)data)
            m->array[i].bytes = 0; // its copy stays until the device closes
    free(data);
}

static enum status alloc_part(struct device *device, enum part part, size_t bytes, void **out)
{
    (void)part;
    return host_alloc(device, bytes, out);
}

static void free_part(struct device *device, enum part part, void *data, size_t bytes)
{
    (void)part;
    host_free(device, data, bytes);
}

static enum status open_stream(struct stream *stream)
{
    (void)stream;
    return OK;
}

static void close_stream(struct stream *stream)
{
    (void)stream;
}

/* If a word is the address of a registered array, replaces it by the device address and copies the array. */
static enum status translate(struct mirror *m, void *at, bool named[MAX_ARRAYS])
{
    uint64_t word = 0;
    memcpy(&word, at, sizeof word);
    for (int i = 0; i < m->arrays; i++) {
        struct host_array *array = &m->array[i];
        uint64_t begin = (uint64_t)(uintptr_t)array->host;
        if (word < begin || word >= begin + array->bytes)
            continue;
        if (array->copy.data == NULL)
            TRY(buffer_alloc(m->device, PART_DATA, array->bytes, &array->copy));
        if (!named[i])
            TRY(copy_to_device(m->stream, array->copy.data, array->host, array->bytes));
        named[i] = true;
        word = (uint64_t)(uintptr_t)array->copy.data + (word - begin);
        memcpy(at, &word, sizeof word);
        return OK;
    }
    return OK;
}

static enum status submit(struct stream *stream, const struct op *op)
{
    struct mirror *m = mirror_of(stream->device);
    bool named[MAX_ARRAYS] = {false};
    size_t bytes = 0;
    struct op *there = op_copy(op, &bytes);
    CHECK(there != NULL && bytes % sizeof(uint64_t) == 0);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t))
        TRY(translate(m, (char *)there + i, named));
    TRY(m->device->ops->submit(m->stream, there));
    for (int i = 0; i < m->arrays; i++)
        if (named[i])
            TRY(copy_to_host(m->stream, m->array[i].host, m->array[i].copy.data, m->array[i].bytes));
    TRY(stream_sync(m->stream));
    free(there);
    return OK;
}

static enum status no_work(struct stream *stream, struct work *work)
{
    (void)stream;
    return fail(NOT_SUPPORTED, "a mirror does not support messages (%s)", work->name);
}

static uint64_t record(struct stream *stream)
{
    (void)stream;
    return 0;
}

static enum status wait(struct stream *stream, struct event event)
{
    (void)stream;
    (void)event;
    return OK; // synchronous: every op is complete when its call returns
}

static enum status sync_event(struct event event)
{
    (void)event;
    return OK;
}

static void no_rest(void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}

static void choices(const struct device *device, struct text *out)
{
    device_choices(((const struct mirror *)device->state)->device, out);
}

static const struct device_traits traits = {
    .name = "mirror",
    .summary = "another device, with tensors in host memory",
    .computes = true,
    .has_host_memory = true,
};

static const struct device_ops mirror = {
    .traits = &traits,
    .open = open_nothing,
    .close = close_all,
    .alloc = alloc_part,
    .free = free_part,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_page_out = no_rest,
    .stream_open = open_stream,
    .stream_close = close_stream,
    .submit = submit,
    .submit_work = no_work,
    .record = record,
    .wait = wait,
    .sync = sync_event,
    .check_algorithms = device_no_algorithms,
    .choices = choices,
    .vendor_copy = device_no_vendor_copy,
    .compute_ns = device_host_ns,
    .time_marks = &device_no_time_marks,
    .range = device_no_range,
    .replay = device_call_body,
    .replay_end = device_no_replay_end,
};

enum status mirror_open(const struct device_options *options, struct device **out)
{
    return device_open_with(&mirror, options, out);
}

void mirror_register(struct device *device, void *data, size_t bytes)
{
    if (device->ops != &mirror)
        return;
    struct mirror *m = mirror_of(device);
    for (int i = 0; i < m->arrays; i++)
        if (m->array[i].host == (char *)data && m->array[i].bytes == bytes)
            return; // already registered
    CHECK(m->arrays < MAX_ARRAYS);
    m->array[m->arrays++] = (struct host_array){.host = data, .bytes = bytes};
}
