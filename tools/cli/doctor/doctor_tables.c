// SPDX-License-Identifier: Apache-2.0
/* Shapes are those of transformer layers of small and large models: m tokens, and the n and k of the four
 * linear layers. On a GPU all sizes are four times those on a CPU. */
#include "tools/cli/doctor/doctor_tables.h"

#include "tools/cli/doctor/doctor_measure.h"
#include "tools/cli/doctor/doctor_messages.h"
#include "tools/cli/doctor/doctor_steps.h"
#include "tools/cli/doctor/doctor_time.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRY_S 0.01 // minimum duration of a try

enum { TRIES = 3 };

/* Prints a line of progress, at once. */
static void report_table(const char *table, size_t shapes, const char *detail)
{
    printf("measured    %s: %zu shapes%s\n", table, shapes, detail);
    fflush(stdout);
}

/* ---- one device ---- */

static enum status open_device(const char *name, bool tf32, struct device **device, struct stream **stream)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct device_options options = {.name = name, .threads = cores > 0 ? (int)cores : 1};
    options.kernels.tf32 = tf32;
    TRY(device_open(&options, device));
    enum status status = stream_create(*device, "doctor", stream);
    if (status != OK)
        device_close(*device);
    return status;
}

/* Measures a (m x k) times the transpose of b (n x k). */
static enum status time_matmul(struct device *device, struct stream *stream, enum dtype dtype,
                               const int64_t shape[3], double *seconds)
{
    const int64_t m = shape[0], n = shape[1], k = shape[2];
    const int64_t rows[] = {m, n, m}, columns[] = {k, k, n};
    struct buffer buffers[3] = {{0}};
    struct tensor tensors[3];
    enum status status = OK;
    for (int i = 0; i < 3 && status == OK; i++) {
        size_t bytes = (size_t)(rows[i] * columns[i]) * dtype_bytes(dtype);
        status = buffer_alloc(device, PART_DATA, bytes, &buffers[i]);
        if (status == OK && i < 2)
            status = doctor_fill(stream, &buffers[i], dtype, rows[i], columns[i]);
        tensors[i] = tensor_2d(buffers[i].data, dtype, rows[i], columns[i]);
    }
    struct gemm matmul = {.a = tensors[0], .b = tensors[1], .c = tensors[2], .transpose_b = true};
    if (status == OK)
        status = doctor_time(stream, &(struct task){doctor_enqueue_gemm, &matmul}, TRY_S, TRIES, seconds);
    for (int i = 0; i < 3; i++)
        buffer_free(&buffers[i]);
    return status;
}

/* The type of a rate in profiles. */
static enum profile_dtype dtype_of(enum rate rate)
{
    switch (rate) {
    case RATE_FP32:
        break;
    case RATE_TF32:
        return PROFILE_TF32;
    case RATE_BF16:
        return PROFILE_BF16;
    case RATE_FP16:
        return PROFILE_FP16;
    case RATE_COUNT:
        break;
    }
    return PROFILE_FP32;
}

static enum status matmul_table(const char *name, enum rate rate, struct cluster_profile *profile)
{
    static const int64_t rows[] = {64, 256, 1024};
    static const int64_t columns[][2] = {{128, 128},  {512, 128},  {128, 512},  {512, 512},
                                         {512, 2048}, {2048, 512}, {2048, 2048}};
    const int64_t scale = device_traits(name)->is_gpu ? 4 : 1;
    struct device *device = NULL;
    struct stream *stream = NULL;
    size_t before = profile->measured[MEASURED_MATMUL].count;
    if (rate == RATE_TF32 && !device_traits(name)->is_gpu)
        return OK; // GPU only
    TRY(open_device(name, rate == RATE_TF32, &device, &stream));
    enum status status = OK;
    for (size_t r = 0; r < sizeof rows / sizeof *rows && status == OK; r++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns && status == OK; c++) {
            struct profile_sample sample = {
                .shape = {scale * rows[r], scale * columns[c][0], scale * columns[c][1]},
                .dtype = dtype_of(rate)};
            double seconds = 0.0;
            status = time_matmul(device, stream, rate_dtype(rate), sample.shape, &seconds);
            sample.value =
                2.0 * (double)sample.shape[0] * (double)sample.shape[1] * (double)sample.shape[2] / seconds;
            if (status == OK)
                profile_add_sample(profile, MEASURED_MATMUL, &sample);
        }
    stream_destroy(stream);
    device_close(device);
    if (status == OK)
        report_table(rate_name(rate), profile->measured[MEASURED_MATMUL].count - before, " of matmul");
    return status;
}

/* Copies from 16 KiB to 256 MiB, read plus written. */
static enum status memory_table(const char *name, struct cluster_profile *profile)
{
    enum { SMALLEST = 1 << 14, LARGEST = 1 << 28, FACTOR = 4 };
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer from = {0}, to = {0};
    TRY(open_device(name, false, &device, &stream));
    enum status status = buffer_alloc(device, PART_DATA, LARGEST / 2, &from);
    if (status == OK)
        status = buffer_alloc(device, PART_DATA, LARGEST / 2, &to);
    if (status == OK)
        status = doctor_fill(stream, &from, F32, 1, LARGEST / 2 / (int64_t)sizeof(float));
    for (int64_t bytes = SMALLEST; bytes <= LARGEST && status == OK; bytes *= FACTOR) {
        int64_t count = bytes / 2 / (int64_t)sizeof(float);
        struct copy both = {.in = tensor_1d(from.data, F32, count), .out = tensor_1d(to.data, F32, count)};
        double seconds = 0.0;
        status = doctor_time(stream, &(struct task){doctor_enqueue_copy, &both}, TRY_S, TRIES, &seconds);
        if (status == OK)
            profile_add_sample(profile, MEASURED_MEMORY,
                               &(struct profile_sample){.shape = {bytes}, .value = (double)bytes / seconds});
    }
    buffer_free(&from);
    buffer_free(&to);
    stream_destroy(stream);
    device_close(device);
    if (status == OK)
        report_table("memory", profile->measured[MEASURED_MEMORY].count, "");
    return status;
}

/* ---- all ---- */

enum status doctor_tables(const char *device, const char *transport, int most_ranks, bool quick,
                          struct cluster_profile *profile)
{
    const bool is_gpu = device_traits(device)->is_gpu;
    if (!is_gpu)
        TRY(doctor_steps(profile->device.cores, quick, profile));
    for (enum rate rate = 0; rate < RATE_COUNT; rate++) {
        if (!is_gpu && rate != RATE_FP16)
            continue; // in training steps
        enum status status = matmul_table(device, rate, profile);
        if (status != OK && status != NOT_SUPPORTED)
            return status;
    }
    TRY(memory_table(device, profile));
    return doctor_messages(device, transport, most_ranks, profile);
}
