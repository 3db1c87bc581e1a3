// SPDX-License-Identifier: Apache-2.0
#include "planner/cost/cost.h"
#include "planner/cost/cost_measured.h"

#include <math.h>

const char *cost_class_name(enum cost_class class)
{
    static const char *const names[] = {
        [COST_MATMUL] = "matmul", [COST_ATTENTION] = "attention",      [COST_MEMORY] = "memory_bound",
        [COST_LAUNCH] = "launch", [COST_OVERLAP] = "overlap_slowdown", [COST_SHARED_CORES] = "shared_cores"};
    CHECK(class < COST_CLASSES);
    return names[class];
}

enum cost_class cost_class_of(enum op_kind kind)
{
    if (kind == OP_GEMM)
        return COST_MATMUL;
    return kind == OP_ATTENTION_FORWARD || kind == OP_ATTENTION_BACKWARD ? COST_ATTENTION : COST_MEMORY;
}

enum profile_dtype cost_dtype(const struct cost_options *options, enum dtype dtype)
{
    if (dtype == BF16)
        return PROFILE_BF16;
    if (dtype == F16)
        return PROFILE_FP16;
    return options->tf32 && options->profile->device.peak_flops[PROFILE_TF32] > 0.0 ? PROFILE_TF32
                                                                                    : PROFILE_FP32;
}

int cost_threads(const struct cost_options *options)
{
    const struct profile_device *device = &options->profile->device;
    if (!device->is_cpu)
        return 1;
    const int ranks = options->ranks_per_node > 0 ? options->ranks_per_node : 1;
    const int threads = options->threads > 0 ? options->threads : device->cores / ranks;
    return threads < 1 ? 1 : threads < device->cores ? threads : device->cores;
}

/* The fraction of its device that a rank computes with: some cores of a CPU, or a whole GPU. */
static double core_share(const struct cost_options *options)
{
    const struct profile_device *device = &options->profile->device;
    return device->is_cpu ? (double)cost_threads(options) / device->cores : 1.0;
}

/* The peak of a dtype, or that of fp32 if the device does not support it: only a few ops have other
 * dtypes. */
static double peak_of(const struct cost_options *options, enum profile_dtype dtype)
{
    const double *peak = options->profile->device.peak_flops;
    return core_share(options) * (peak[dtype] > 0.0 ? peak[dtype] : peak[PROFILE_FP32]);
}

/* The largest peak of any dtype, for fixed times, which do not depend on the dtype. */
static double top_peak(const struct cost_options *options)
{
    double top = 0.0;
    for (int i = 0; i < PROFILE_DTYPES; i++)
        top = fmax(top, options->profile->device.peak_flops[i]);
    return top;
}

/* Looks up a rate in a measured table, with the threads of a rank. */
static bool rate_of(const struct cost_options *options, enum profile_kind kind, struct measured_query query,
                    double *rate)
{
    const struct profile_device *device = &options->profile->device;
    query.is_matmul = kind == MEASURED_MATMUL;
    query.threads = device->is_cpu ? cost_threads(options) : 0;
    query.cores = device->cores;
    return measured_rate(&options->profile->measured[kind], &query, rate);
}

static double memory_s(const struct cost_options *options, double bytes)
{
    const struct cluster_profile *p = options->profile;
    const int64_t shape[MEASURED_COLUMNS] = {(int64_t)bytes, 1, 1};
    double rate;
    if (bytes <= 0.0)
        return 0.0;
    if (!rate_of(options, MEASURED_MEMORY, (struct measured_query){.shape = shape, .dtype = PROFILE_FP32},
                 &rate))
        rate = p->device.memory_bandwidth * p->model.memory_efficiency * core_share(options) * bytes /
               (bytes + p->model.memory_half_bytes);
    return bytes / rate;
}

/* The time of an op that is memory-bound on most devices. */
static double memory_bound_s(const struct cost_options *options, const struct op_record *op)
{
    const struct measured_query query = {
        .shape = op->shape, .dtype = cost_dtype(options, op->dtype), .op = (int)op->kind};
    double rate;
    if (op->cost.bytes > 0.0 && rate_of(options, MEASURED_OP, query, &rate))
        return op->cost.bytes / rate;
    return memory_s(options, op->cost.bytes);
}

/* A copy between host and device, over the link of the device (PCIe, NVLink-C2C); on a CPU, in memory. */
static double host_copy_s(const struct cost_options *options, double bytes)
{
    const struct profile_device *device = &options->profile->device;
    return device->is_cpu ? memory_s(options, bytes) : bytes / device->host_bandwidth;
}

/* Utilization of the waves of output tiles (wave quantization). */
static double waves(const struct cluster_profile *p, const int64_t *shape)
{
    const int64_t edge = p->model.matmul_tile, cores = p->device.cores;
    if (edge <= 0 || cores <= 0 || p->device.is_cpu)
        return 1.0;
    int64_t tiles = ((shape[0] + edge - 1) / edge) * ((shape[1] + edge - 1) / edge);
    int64_t rounds = (tiles + cores - 1) / cores;
    return rounds > 0 ? (double)tiles / (double)(rounds * cores) : 1.0;
}

/* Whether the rows of both operands and of the result are multiples of `width` bytes. */
static bool is_aligned(const int64_t *shape, int64_t each, int64_t width)
{
    return shape[1] * each % width == 0 && shape[2] * each % width == 0;
}

/* Factor on the rate if rows of an operand are not multiples of 16 bytes, the width of a load:
 * model.matmul_unaligned for each halving of the width until it fits. Tensor cores of GPUs are fed by
 * asynchronous copies of at least 4 bytes (cp.async); without these a kernel is at most as fast as fp32
 * arithmetic. */
static double alignment_factor(const struct cost_options *options, const int64_t *shape, int64_t each,
                               enum profile_dtype dtype)
{
    enum { LOAD_BYTES = 16, ASYNC_BYTES = 4 };
    const struct profile_model *model = &options->profile->model;
    double factor = 1.0;
    for (int64_t width = LOAD_BYTES; width > each; width /= 2)
        if (!is_aligned(shape, each, width))
            factor *= model->matmul_unaligned;
    if (!options->profile->device.is_cpu && !is_aligned(shape, each, ASYNC_BYTES))
        factor = fmin(factor, peak_of(options, PROFILE_FP32) / peak_of(options, dtype));
    return factor;
}

/* *measured: the time is from a table, and thus includes memory traffic. */
static double matmul_s(const struct cost_options *options, const struct op_record *op, bool *measured)
{
    const struct profile_model *model = &options->profile->model;
    const enum profile_dtype dtype = cost_dtype(options, op->dtype);
    const double m = (double)op->shape[0], n = (double)op->shape[1], k = (double)op->shape[2];
    const double flops = 2.0 * m * n * k;
    double rate;
    if (flops <= 0.0)
        return 0.0;
    *measured = rate_of(
        options, MEASURED_MATMUL,
        (struct measured_query){.shape = op->shape, .dtype = dtype, .transposed = op->transposed}, &rate);
    if (*measured)
        return flops / rate;
    const double alignment = alignment_factor(options, op->shape, (int64_t)dtype_bytes(op->dtype), dtype);
    double efficiency = model->matmul_efficiency * k / (k + model->matmul_half_k) *
                        waves(options->profile, op->shape) * alignment;
    return flops / (peak_of(options, dtype) * efficiency) + model->matmul_half_flops / top_peak(options);
}

static double attention_s(const struct cost_options *options, const struct op_record *op, bool *measured)
{
    const struct profile_model *model = &options->profile->model;
    const bool forward = op->kind == OP_ATTENTION_FORWARD;
    const enum profile_dtype dtype = cost_dtype(options, op->dtype);
    const double flops = op->cost.flops;
    double rate;
    if (flops <= 0.0)
        return 0.0;
    *measured = rate_of(options, forward ? MEASURED_ATTENTION_FORWARD : MEASURED_ATTENTION_BACKWARD,
                        (struct measured_query){.shape = op->shape, .dtype = dtype}, &rate);
    if (*measured)
        return flops / rate;
    double efficiency = forward ? model->attention_forward : model->attention_backward;
    return flops / (peak_of(options, dtype) * efficiency) + model->attention_half_flops / top_peak(options);
}

/* Time without launches. A matmul or attention that is not measured takes at least the time of its memory
 * traffic. */
static double run_s(const struct cost_options *options, const struct op_record *op)
{
    bool measured = false;
    double compute_s;
    if (op->kind == OP_TO_DEVICE || op->kind == OP_TO_HOST)
        return host_copy_s(options, op->cost.bytes);
    if (cost_class_of(op->kind) == COST_MEMORY)
        return memory_bound_s(options, op);
    if (op->kind == OP_GEMM)
        compute_s = matmul_s(options, op, &measured);
    else
        compute_s = attention_s(options, op, &measured);
    if (options->assume != NULL && op->kind != OP_GEMM)
        compute_s *= assume_attention_factor(options->assume, options->model.compute_capability, op->kind);
    return measured ? compute_s : fmax(compute_s, memory_s(options, op->cost.bytes));
}

/* The cost of one op, without assumptions. */
static struct op_time cost_of_one(const struct cost_options *options, const struct op_record *op)
{
    return (struct op_time){.run_s = run_s(options, op),
                            .launch_s = op->launches * options->profile->model.launch_s};
}

struct op_time cost_of_op(const struct cost_options *options, const struct op_record *op)
{
    struct op_record assumed[ASSUME_MAX_OPS];
    struct op_time time = {.launch_s = assume_host_s(&options->model, op)};
    if (options->assume == NULL)
        return cost_of_one(options, op);
    const int count = assume_ops(options->assume, &options->model, op, assumed);
    for (int i = 0; i < count; i++) {
        const struct op_time one = cost_of_one(options, &assumed[i]);
        time.run_s += one.run_s;
        time.launch_s += one.launch_s;
    }
    const struct assumed_message message = assume_message(options->assume, &options->model, op);
    if (message.bytes > 0)
        time.run_s += (1.0 - options->assume->tp_overlap) *
                      cost_of_message(options, message.call, options->tensor_group, message.bytes);
    return time;
}
