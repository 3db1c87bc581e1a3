// SPDX-License-Identifier: Apache-2.0
/* From measurements to a profile. Peaks are measured, so the efficiencies of `model` are relative to what
 * this machine reaches: 1 for matmuls, copies and messages. A half-size is the median over a table:
 *
 *     rate = peak · size/(size + half)      half = size · (peak/rate - 1) */
#include "tools/cli/doctor/doctor_profile.h"

#include "kernels/device.h"
#include "kernels/device_info.h"
#include "tools/cli/doctor/doctor_tables.h"
#include "tools/cli/doctor/doctor_time.h"
#include "trainer/files/problems.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_CHARS = 64, MAX_SAMPLES = 256 };

/* The size of a sample, and its rate in the same unit per second. */
struct point {
    double size, rate;
};

static struct point point_of(enum profile_kind kind, const struct profile_sample *sample)
{
    const double n = (double)sample->shape[0], bytes = (double)sample->shape[2];
    if (kind == MEASURED_MATMUL)
        return (struct point){2.0 * n * (double)sample->shape[1] * bytes, sample->value};
    if (kind == MEASURED_MEMORY)
        return (struct point){n, sample->value};
    double factor = kind == MEASURED_P2P          ? 1.0
                    : kind == MEASURED_ALL_REDUCE ? 2.0 * (n - 1.0) / n
                                                  : (n - 1.0) / n;
    return (struct point){bytes, factor * bytes / sample->value}; // bus bandwidth
}

/* The largest rate of one dtype in a table. */
static double peak_of(const struct cluster_profile *profile, enum profile_kind kind, enum profile_dtype dtype)
{
    double peak = 0.0;
    for (size_t i = 0; i < profile->measured[kind].count; i++) {
        const struct profile_sample *sample = &profile->measured[kind].list[i];
        double rate = point_of(kind, sample).rate;
        if (sample->dtype == dtype && rate > peak)
            peak = rate;
    }
    return peak;
}

/* The median half-size of fp32 samples, at least 0: caches can make it negative. */
static double half_of(const struct cluster_profile *profile, enum profile_kind kind, double peak)
{
    double halves[MAX_SAMPLES];
    size_t count = 0;
    for (size_t i = 0; i < profile->measured[kind].count && count < MAX_SAMPLES; i++) {
        const struct profile_sample *sample = &profile->measured[kind].list[i];
        struct point point = point_of(kind, sample);
        if (sample->dtype == PROFILE_FP32)
            halves[count++] = point.size * (peak / point.rate - 1.0);
    }
    const double half = count > 0 ? doctor_median(halves, count) : 0.0;
    return half > 0.0 ? half : 0.0;
}

static void set_peaks(struct cluster_profile *profile, const struct ceilings *c)
{
    const double summary[PROFILE_DTYPES] = {[PROFILE_FP32] = c->flops[RATE_FP32],
                                            [PROFILE_TF32] = c->flops[RATE_TF32],
                                            [PROFILE_BF16] = c->flops[RATE_BF16],
                                            [PROFILE_FP16] = c->flops[RATE_FP16]};
    for (enum profile_dtype d = 0; d < PROFILE_DTYPES; d++) {
        double table = peak_of(profile, MEASURED_MATMUL, d);
        profile->device.peak_flops[d] = table > summary[d] ? table : summary[d];
    }
    // The largest copy: smaller ones stay in a cache.
    profile->device.memory_bandwidth = c->copy_bytes_per_s;
}

static void set_model(struct cluster_profile *profile)
{
    struct profile_model *model = &profile->model;
    const double link = profile->node.link_bandwidth;
    const double bus = peak_of(profile, MEASURED_ALL_REDUCE, PROFILE_FP32);
    model->matmul_efficiency = model->memory_efficiency = model->p2p_efficiency = 1.0;
    model->matmul_half_flops = half_of(profile, MEASURED_MATMUL, profile->device.peak_flops[PROFILE_FP32]);
    model->matmul_half_k = 0.0; // in matmul_half_flops
    model->memory_half_bytes = half_of(profile, MEASURED_MEMORY, profile->device.memory_bandwidth);
    if (profile->device.is_cpu) {
        model->matmul_tile = 0;
        model->matmul_unaligned = 1.0;
        model->launch_s = 0.0; // in the times of small shapes
        model->attention_half_flops = model->matmul_half_flops;
    }
    if (link > 0.0 && bus > 0.0) {
        model->collective_link_efficiency = bus < link ? bus / link : 1.0;
        model->collective_link_half_bytes = half_of(profile, MEASURED_ALL_REDUCE, bus);
    }
}

/* Rounds to four significant digits. */
static double rounded(double value)
{
    char text[NUMBER_CHARS];
    double shorter = value;
    snprintf(text, sizeof text, "%.4g", value);
    CHECK(number_parse(text, &shorter));
    return shorter;
}

static void round_measurements(struct cluster_profile *profile)
{
    struct profile_model *model = &profile->model;
    double *values[] = {&profile->device.memory_bandwidth,  &profile->node.link_latency_s,
                        &profile->node.link_bandwidth,      &profile->node.waiting_process,
                        &model->matmul_half_flops,          &model->memory_half_bytes,
                        &model->collective_link_efficiency, &model->collective_link_half_bytes};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        *values[i] = rounded(*values[i]);
    for (enum profile_dtype d = 0; d < PROFILE_DTYPES; d++)
        profile->device.peak_flops[d] = rounded(profile->device.peak_flops[d]);
    for (enum profile_kind kind = 0; kind < MEASURED_KINDS; kind++)
        for (size_t i = 0; i < profile->measured[kind].count; i++)
            profile->measured[kind].list[i].value = rounded(profile->measured[kind].list[i].value);
}

static enum status make(const char *device, const char *transport, int ranks, bool quick,
                        const struct ceilings *c, struct cluster_profile *profile)
{
    struct device_info facts;
    char host[NAME_CHARS] = "", name[4 * NAME_CHARS];
    gethostname(host, sizeof host - 1);
    text_printable(host, name, sizeof host);
    TRY(device_query_info(device, 0, &facts));
    profile_set_text(&profile->name, name);
    profile_set_text(&profile->description, "measured by cuboid doctor");
    profile_set_text(&profile->device.name, facts.name);
    profile->device.is_cpu = !device_traits(device)->is_gpu;
    profile->device.cores = facts.cores;
    profile->device.memory_bytes = facts.memory_bytes;
    profile->device.reserved_bytes = facts.reserved_bytes;
    profile->node.devices = profile->device.is_cpu ? 1 : ranks;
    if (c->link_ranks > 0) {
        profile->node.link_latency_s = c->latency_s;
        profile->node.link_bandwidth = c->bytes_per_s;
    }
    TRY(doctor_tables(device, transport, ranks, quick, profile));
    set_peaks(profile, c);
    set_model(profile);
    round_measurements(profile);
    return OK;
}

/* Checks the profile as `cuboid profile check` does. */
static enum status check(const struct cluster_profile *profile, const char *path)
{
    struct problems problems = {0};
    profile_check(profile, path, &problems);
    enum status status = problems.errors == 0 ? OK : fail(NOT_SUPPORTED, "%s", problems.list[0].text);
    problems_free(&problems);
    return status;
}

enum status doctor_profile_write(const char *path, const char *device, const char *transport, int ranks,
                                 bool quick, const struct ceilings *c)
{
    struct cluster_profile *profile = profile_create();
    struct text yaml = {0};
    enum status status = make(device, transport, ranks, quick, c, profile);
    if (status == OK)
        status = check(profile, path);
    text_add(&yaml, "# Measured by cuboid doctor. Peaks are the largest rates measured.\n");
    profile_text(profile, &yaml);
    if (status == OK)
        status = file_write_atomic(path, text_chars(&yaml), yaml.length);
    text_free(&yaml);
    profile_destroy(profile);
    return status;
}
