// SPDX-License-Identifier: Apache-2.0
/* The summary: the best rate of matrix multiplication of each type, of a copy, and of messages. */
#include "tools/cli/doctor/doctor_measure.h"

#include "kernels/ops.h"
#include "parallel/group.h"
#include "tools/cli/doctor/doctor_time.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRY_S 0.05 // minimum duration of a try

enum { TRIES = 4, SMALLEST = 256, LARGEST = 8192 };

/* ---- one device ---- */

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

enum dtype rate_dtype(enum rate rate)
{
    return rates[rate].dtype;
}

/* The seconds of one multiplication of square matrices of size n. */
static enum status time_square(struct device *device, struct stream *stream, enum dtype dtype, int64_t n,
                               int tries, double *once)
{
    struct buffer a = {0}, b = {0}, c = {0};
    enum status status = buffer_alloc(device, PART_DATA, (size_t)(n * n) * dtype_bytes(dtype), &a);
    if (status == OK)
        status = buffer_alloc(device, PART_DATA, (size_t)(n * n) * dtype_bytes(dtype), &b);
    if (status == OK)
        status = buffer_alloc(device, PART_DATA, (size_t)(n * n) * dtype_bytes(dtype), &c);
    if (status == OK)
        status = doctor_fill(stream, &a, dtype, n, n);
    if (status == OK)
        status = doctor_fill(stream, &b, dtype, n, n);
    struct gemm product = {.a = tensor_2d(a.data, dtype, n, n),
                           .b = tensor_2d(b.data, dtype, n, n),
                           .c = tensor_2d(c.data, dtype, n, n),
                           .transpose_b = true};
    if (status == OK)
        status = doctor_time(stream, &(struct task){doctor_enqueue_gemm, &product}, TRY_S, tries, once);
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&c);
    return status;
}

static double square_rate(int64_t n, double seconds)
{
    return 2.0 * (double)n * (double)n * (double)n / seconds;
}

/* Doubles the size of the matrices until a multiplication takes long enough, and measures the best size
 * well. */
static enum status measure_gemm(struct device *device, struct stream *stream, enum dtype dtype, double *flops)
{
    int64_t best = SMALLEST;
    double once = 0.0;
    for (int64_t n = SMALLEST; n <= LARGEST && once < TRY_S / 8; n *= 2) {
        TRY(time_square(device, stream, dtype, n, 1, &once));
        if (square_rate(n, once) > *flops) {
            *flops = square_rate(n, once);
            best = n;
        }
    }
    TRY(time_square(device, stream, dtype, best, TRIES, &once));
    if (square_rate(best, once) > *flops)
        *flops = square_rate(best, once);
    return OK;
}

static enum status enqueue_vendor_copy(struct stream *stream, const void *context)
{
    const struct copy *both = context;
    return stream_vendor_copy(stream, both->out.data, both->in.data,
                              (size_t)tensor_count(both->in) * dtype_bytes(both->in.dtype));
}

/* Larger than any cache. */
static enum status measure_copy(struct device *device, struct stream *stream, struct ceilings *out)
{
    const int64_t count = (int64_t)8192 * 8192;
    size_t bytes = (size_t)count * sizeof(float);
    struct buffer from = {0}, to = {0};
    double once = 0.0;
    enum status status = buffer_alloc(device, PART_DATA, bytes, &from);
    if (status == OK)
        status = buffer_alloc(device, PART_DATA, bytes, &to);
    if (status == OK)
        status = fill(stream, (struct fill){.out = tensor_1d(from.data, F32, count), .value = 1.0F});
    struct copy both = {.in = tensor_1d(from.data, F32, count), .out = tensor_1d(to.data, F32, count)};
    if (status == OK)
        status = doctor_time(stream, &(struct task){doctor_enqueue_copy, &both}, TRY_S, TRIES, &once);
    if (status == OK)
        out->copy_bytes_per_s = 2.0 * (double)bytes / once;
    if (status == OK && enqueue_vendor_copy(stream, &both) == OK) {
        status = doctor_time(stream, &(struct task){enqueue_vendor_copy, &both}, TRY_S, TRIES, &once);
        out->vendor_copy_bytes_per_s = status == OK ? 2.0 * (double)bytes / once : 0.0;
    }
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
        status = measure_copy(device, stream, out);
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

static enum status measure_messages(struct world *world, struct device *device, struct stream *stream,
                                    struct link *link)
{
    enum { BYTES = 32 << 20 };
    int ranks[64];
    struct message_task b = {.all = NULL};
    struct buffer buffer = {0};
    for (int r = 0; r < world->size; r++)
        ranks[r] = r;
    TRY(group_create(world, "doctor", 1, ranks, world->size, &b.all));
    TRY(buffer_alloc(device, PART_DATA, BYTES, &buffer));
    double small, large, sum;
    b.data = tensor_1d(buffer.data, F32, 4);
    TRY(fill(stream, (struct fill){.out = tensor_1d(buffer.data, F32, BYTES / 4), .value = 0.0F}));
    TRY(doctor_time_messages(stream, &b, doctor_enqueue_exchange, 100, TRIES, &small));
    b.data = tensor_1d(buffer.data, F32, BYTES / 4);
    TRY(doctor_time_messages(stream, &b, doctor_enqueue_exchange, 4, TRIES, &large));
    TRY(doctor_time_messages(stream, &b, doctor_enqueue_all_reduce, 4, TRIES, &sum));
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
