// SPDX-License-Identifier: Apache-2.0
/* Matrices contain random numbers: a GPU multiplies zeros or constants faster than real data.
 *
 * The best of several tries counts, each long enough for the clock: a machine is often busy, and never too
 * fast. */
#include "tools/cli/doctor_measure.h"

#include "base/clock.h"
#include "base/philox.h"
#include "kernels/ops.h"
#include "parallel/group.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRY_S 0.05 // minimum duration of a try

enum { TRIES = 4, SMALLEST = 256, LARGEST = 8192 };

/* Enqueues some work on the stream. */
struct task {
    enum status (*put)(struct stream *stream, const void *context);
    const void *context;
};

/* Returns the seconds of `times` runs of the task. */
static enum status time_of(struct stream *stream, const struct task *task, int times, double *out)
{
    TRY(stream_sync(stream));
    double begin = clock_s();
    for (int i = 0; i < times; i++)
        TRY(task->put(stream, task->context));
    TRY(stream_sync(stream));
    *out = clock_s() - begin;
    return OK;
}

/* Returns the seconds of one run, the best of several tries. */
static enum status best_of(struct stream *stream, const struct task *task, double *out)
{
    double best = 1e30, once;
    TRY(time_of(stream, task, 1, &once)); // the first one allocates memory and creates plans
    TRY(time_of(stream, task, 1, &once));
    int times = once < TRY_S ? (int)(TRY_S / (once + 1e-7)) + 1 : 1;
    for (int i = 0; i < TRIES; i++) {
        double all;
        TRY(time_of(stream, task, times, &all));
        best = all / times < best ? all / times : best;
    }
    *out = best;
    return OK;
}

/* ---- one device ---- */

static enum status put_gemm(struct stream *stream, const void *context)
{
    return gemm(stream, *(const struct gemm *)context);
}

static enum status put_copy(struct stream *stream, const void *context)
{
    return copy(stream, *(const struct copy *)context);
}

static const struct {
    const char *name;
    enum dtype dtype;
    bool tf32;
} rates[] = {
    [RATE_FP32] = {"fp32", F32, false},
    [RATE_TF32] = {"tf32", F32, true},
    [RATE_BF16] = {"bf16", BF16, false},
    [RATE_FP16] = {"fp16", F16, false},
};
_Static_assert(sizeof rates / sizeof *rates == RATE_COUNT, "one row for each");

const char *rate_name(enum rate rate)
{
    return rates[rate].name;
}

/* Returns an n x n matrix with numbers of both signs. */
static enum status fill_square(struct stream *stream, struct buffer *buffer, enum dtype dtype, int64_t n)
{
    return init_normal(stream, (struct init_normal){.out = tensor_2d(buffer->data, dtype, n, n),
                                                    .generator = philox_named(1, "doctor"),
                                                    .std = 1.0F,
                                                    .columns = n});
}

/* Measures square matrices of size n, which doubles until a multiplication takes long enough. */
static enum status measure_gemm(struct device *device, struct stream *stream, enum dtype dtype, double *flops)
{
    double once = 0.0;
    for (int64_t n = SMALLEST; n <= LARGEST && once < TRY_S / 2; n *= 2) {
        struct buffer a = {0}, b = {0}, c = {0};
        enum status status = buffer_alloc(device, PART_DATA, (size_t)(n * n) * dtype_bytes(dtype), &a);
        if (status == OK)
            status = buffer_alloc(device, PART_DATA, (size_t)(n * n) * dtype_bytes(dtype), &b);
        if (status == OK)
            status = buffer_alloc(device, PART_DATA, (size_t)(n * n) * dtype_bytes(dtype), &c);
        if (status == OK)
            status = fill_square(stream, &a, dtype, n);
        if (status == OK)
            status = fill_square(stream, &b, dtype, n);
        struct gemm product = {.a = tensor_2d(a.data, dtype, n, n),
                               .b = tensor_2d(b.data, dtype, n, n),
                               .c = tensor_2d(c.data, dtype, n, n),
                               .transpose_b = true};
        if (status == OK)
            status = best_of(stream, &(struct task){put_gemm, &product}, &once);
        double rate = 2.0 * (double)n * (double)n * (double)n / once;
        if (status == OK && rate > *flops)
            *flops = rate;
        buffer_free(&a);
        buffer_free(&b);
        buffer_free(&c);
        TRY(status);
    }
    return OK;
}

/* Larger than any cache. */
static enum status measure_copy(struct device *device, struct stream *stream, double *bytes_per_s)
{
    const int64_t count = (int64_t)8192 * 8192;
    size_t bytes = (size_t)count * sizeof(float);
    struct buffer from = {0}, to = {0};
    double once = 0.0;
    enum status status = buffer_alloc(device, PART_DATA, bytes, &from);
    if (status == OK)
        status = buffer_alloc(device, PART_DATA, bytes, &to);
    if (status == OK)
        status = fill_square(stream, &from, F32, 8192);
    struct copy both = {.in = tensor_1d(from.data, F32, count), .out = tensor_1d(to.data, F32, count)};
    if (status == OK)
        status = best_of(stream, &(struct task){put_copy, &both}, &once);
    if (status == OK)
        *bytes_per_s = 2.0 * (double)bytes / once;
    buffer_free(&from);
    buffer_free(&to);
    return status;
}

/* Measures one rate on a device opened for it. */
static enum status measure_rate(const struct device_options *options, enum rate rate, double *flops)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct device_options mine = *options;
    mine.kernels.tf32 = rates[rate].tf32;
    if (mine.kernels.tf32 && !device_traits(mine.name)->is_gpu)
        return fail(NOT_SUPPORTED, "n/a (GPU only)");
    TRY(device_open(&mine, &device));
    enum status status = stream_create(device, "doctor", &stream);
    if (status == OK)
        status = measure_gemm(device, stream, rates[rate].dtype, flops);
    stream_destroy(stream);
    device_close(device);
    return status;
}

static enum status measure_device(const char *name, struct ceilings *out)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct device *device = NULL;
    struct stream *stream = NULL;
    const struct device_options options = {.name = name, .threads = cores > 0 ? (int)cores : 1};
    TRY(device_open(&options, &device));
    enum status status = stream_create(device, "doctor", &stream);
    if (status == OK)
        status = measure_copy(device, stream, &out->copy_bytes_per_s);
    stream_destroy(stream);
    device_close(device);
    for (enum rate rate = 0; rate < RATE_COUNT && status == OK; rate++)
        if (measure_rate(&options, rate, &out->flops[rate]) != OK)
            snprintf(out->why[rate], sizeof out->why[0], "%.150s", fail_text());
    return status;
}

/* ---- between ranks ---- */

struct link {
    const char *device;
    struct ceilings *out; // written by rank 0
};

struct link_bench {
    struct group *all;
    struct tensor data;
};

/* Sends to the next rank, receives from the previous one. */
static enum status put_letters(struct stream *stream, const void *context)
{
    const struct link_bench *b = context;
    int n = b->all->size, rank = b->all->rank;
    int64_t half = tensor_count(b->data) / 2;
    float *data = b->data.data;
    struct message both[] = {
        {.data = tensor_1d(data, F32, half), .peer = (rank + 1) % n, .send = true},
        {.data = tensor_1d(data + half, F32, half), .peer = (rank + n - 1) % n, .send = false},
    };
    return group_exchange(b->all, stream, both, 2);
}

static enum status put_sum(struct stream *stream, const void *context)
{
    const struct link_bench *b = context;
    return group_all_reduce(b->all, stream, b->data, REDUCE_SUM);
}

/* All ranks run the same number, so that every receive has its send. */
static enum status time_messages(struct stream *stream, const struct link_bench *b,
                                 enum status (*put)(struct stream *, const void *), int times, double *best)
{
    *best = 1e30;
    for (int i = 0; i <= TRIES; i++) {
        double all;
        TRY(group_barrier(b->all, stream));
        TRY(time_of(stream, &(struct task){put, b}, times, &all));
        *best = i > 0 && all / times < *best ? all / times : *best;
    }
    return OK;
}

static enum status measure_messages(struct world *world, struct device *device, struct stream *stream,
                                    struct link *link)
{
    enum { BYTES = 32 << 20 };
    int ranks[64];
    struct link_bench b = {.all = NULL};
    struct buffer buffer = {0};
    for (int r = 0; r < world->size; r++)
        ranks[r] = r;
    TRY(group_create(world, "doctor", 1, ranks, world->size, &b.all));
    TRY(buffer_alloc(device, PART_DATA, BYTES, &buffer));
    double small, large, sum;
    b.data = tensor_1d(buffer.data, F32, 4);
    TRY(fill(stream, (struct fill){.out = tensor_1d(buffer.data, F32, BYTES / 4), .value = 0.0F}));
    TRY(time_messages(stream, &b, put_letters, 100, &small));
    b.data = tensor_1d(buffer.data, F32, BYTES / 4);
    TRY(time_messages(stream, &b, put_letters, 4, &large));
    TRY(time_messages(stream, &b, put_sum, 4, &sum));
    if (world->rank == 0) {
        link->out->link_ranks = world->size;
        link->out->latency_s = small;
        link->out->bytes_per_s = BYTES / 2.0 / large;
        link->out->all_reduce_bytes_per_s = BYTES / sum;
    }
    buffer_free(&buffer);
    group_destroy(b.all);
    return OK;
}

static enum status link_rank(struct world *world, void *argument)
{
    struct link *link = argument;
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct device_options options = {.name = link->device, .threads = 1, .index = world->device_index};
    if (world->size < 2 || world->size > 64)
        return OK;
    TRY(device_open(&options, &device));
    TRY(stream_create(device, "doctor", &stream));
    TRY(measure_messages(world, device, stream, link));
    stream_destroy(stream);
    device_close(device);
    return OK;
}

enum status doctor_measure(const char *device, const char *transport, int ranks, struct ceilings *out)
{
    struct link link = {.device = device, .out = out};
    TRY(measure_device(device, out));
    struct world_options options = {.transport = transport, .size = ranks, .nondeterministic = true};
    if (ranks < 2)
        snprintf(out->link_why, sizeof out->link_why, "only one device");
    else if (world_run_as(&options, link_rank, &link) != OK)
        snprintf(out->link_why, sizeof out->link_why, "%.290s", fail_text());
    return OK;
}
