// SPDX-License-Identifier: Apache-2.0
/* One row for each key of a profile, in the order of the file and of docs/planning.md.
 *
 * To add a key: add a field in profile.h and a row here, and regenerate the reference in docs/planning.md
 * with `cuboid profile --reference`. Numbers of the section `model` are efficiency parameters:
 * at most twenty, none for one paper or one row of measurements. `spread` says how far such a default may be
 * off, for fits (planner/fit/): 0.15 is 15 %, 0.7 a factor of two, 1.5 one of four and a half. */
#include "planner/profile/profile_table.h"

#include <string.h>

#define ROW(key_, type_, field_, fallback_, unit_, help_, ...)                                  \
    {                                                                                           \
        .key = (key_), .type = ROW_##type_, .offset = offsetof(struct cluster_profile, field_), \
        .fallback = (fallback_), .unit = (unit_), .help = (help_), __VA_ARGS__                  \
    }
#define TEXT_ROW(key_, field_, fallback_, help_)                                             \
    {                                                                                        \
        .key = (key_), .type = ROW_TEXT, .offset = offsetof(struct cluster_profile, field_), \
        .fallback = (fallback_), .unit = "", .help = (help_)                                 \
    }
#define BETWEEN(low_, high_) .low = (low_), .high = (high_)
#define UP_TO(high_)         .low = 0, .high = (high_), .above = true
#define PEAK(dtype_, fallback_, name_)                                                    \
    ROW("device.peak_flops_" name_, REAL, device.peak_flops[dtype_], fallback_, "FLOP/s", \
        "Peak of dense " name_ " matmuls; 0: not supported.", BETWEEN(1e6, 1e18), .or_zero = true)

const struct profile_row profile_rows[] = {
    TEXT_ROW("name", name, "", "Name of the cluster; empty: the name of the file."),
    TEXT_ROW("description", description, "", "One line for `cuboid profile --list`."),

    TEXT_ROW("device.name", device.name, NULL, "Product name."),
    ROW("device.is_cpu", BOOL, device.is_cpu, "false", "",
        "True for a CPU, whose cores and memory bandwidth are shared by the ranks of a node."),
    ROW("device.cores", INT, device.cores, NULL, "", "Streaming multiprocessors of a GPU, or cores of a CPU.",
        BETWEEN(1, 65536)),
    ROW("device.peak_flops_fp32", REAL, device.peak_flops[PROFILE_FP32], NULL, "FLOP/s",
        "Peak of dense fp32 matmuls.", BETWEEN(1e6, 1e18)),
    PEAK(PROFILE_TF32, "0", "tf32"),
    PEAK(PROFILE_BF16, "0", "bf16"),
    PEAK(PROFILE_FP16, "0", "fp16"),
    PEAK(PROFILE_FP8, "0", "fp8"),
    ROW("device.memory_bytes", COUNT, device.memory_bytes, NULL, "B", "Memory of one device.",
        BETWEEN(1e6, 1e15)),
    ROW("device.memory_bandwidth", REAL, device.memory_bandwidth, NULL, "B/s",
        "Peak memory bandwidth, bytes read plus bytes written.", BETWEEN(1e6, 1e15)),
    ROW("device.host_bandwidth", REAL, device.host_bandwidth, "25e9", "B/s",
        "Bandwidth of copies between host and device memory, in one direction; unused for a CPU. The default "
        "is an estimate for PCIe 4.0 x16.",
        BETWEEN(1e6, 1e15)),
    ROW("device.reserved_bytes", COUNT, device.reserved_bytes, "0", "B",
        "Memory that the program cannot use: CUDA context, libraries, NCCL buffers.", BETWEEN(0, 1e15)),

    ROW("node.devices", INT, node.devices, NULL, "",
        "Devices of a node: those that the fast interconnect (NVLink) joins.", BETWEEN(1, 1024)),
    ROW("node.link_latency_s", REAL, node.link_latency_s, NULL, "s",
        "Latency of a message between two devices of a node.", UP_TO(1), .required = IF_SEVERAL_DEVICES),
    ROW("node.link_bandwidth", REAL, node.link_bandwidth, NULL, "B/s",
        "Peak bandwidth of the links of one device, in one direction.", BETWEEN(1e6, 1e15),
        .required = IF_SEVERAL_DEVICES),
    ROW("node.waiting_process", REAL, node.waiting_process, "0", "1",
        "Fraction of a CPU core that a process uses while it waits for a message.", BETWEEN(0, 1)),

    ROW("network.nics", INT, network.nics, "0", "", "NICs of a node; 0: the cluster is one node.",
        BETWEEN(0, 1024)),
    ROW("network.latency_s", REAL, network.latency_s, NULL, "s", "Latency of a message between two nodes.",
        UP_TO(1), .required = IF_NETWORK),
    ROW("network.bandwidth", REAL, network.bandwidth, NULL, "B/s",
        "Peak bandwidth of one NIC, in one direction.", BETWEEN(1e5, 1e15), .required = IF_NETWORK),

    ROW("model.matmul_efficiency", REAL, model.matmul_efficiency, "0.8", "1",
        "Fraction of the peak that large, aligned matmuls reach.", UP_TO(1), .spread = 0.15,
        .of_device = true, .source = "estimate: cuBLAS on A100 and H100 with bf16 operands"),
    ROW("model.matmul_half_flops", REAL, model.matmul_half_flops, "1e9", "FLOP",
        "Fixed part of a matmul's time, in FLOPs at the largest peak of the device.", BETWEEN(0, 1e15),
        .spread = 0.7, .of_device = true, .source = "estimate: 3 us at 312 TFLOP/s"),
    ROW("model.matmul_half_k", REAL, model.matmul_half_k, "128", "elements",
        "k at which a matmul reaches half of that: filling and draining the pipeline of a tile.",
        BETWEEN(0, 1e6), .spread = 0.7, .of_device = true,
        .source = "estimate: two to four steps of 32 to 64 elements"),
    ROW("model.matmul_tile", INT, model.matmul_tile, "128", "elements",
        "Edge of the output tile that one core computes at a time, for wave quantization; 0: none.",
        BETWEEN(0, 4096), .source = "the most frequent tile of cuBLAS, 128 x 128"),
    ROW("model.matmul_unaligned", REAL, model.matmul_unaligned, "0.5", "1",
        "Factor on the rate for each halving of the width of loads, from 16 bytes on, until it divides the "
        "rows of all operands; if 4 bytes do not, at most the rate of fp32.",
        UP_TO(1), .spread = 0.3, .of_device = true, .source = "estimate"),
    ROW("model.attention_forward", REAL, model.attention_forward, "0.6", "1",
        "Fraction of the peak that the fastest FlashAttention of the GPU (version 2 up to Ampere, 3 on "
        "Hopper, 4 on Blackwell) reaches in the forward pass, of executed FLOPs.",
        UP_TO(1), .spread = 0.25, .of_device = true,
        .source = "FlashAttention-2 (Dao 2023): up to 0.73 on A100"),
    ROW("model.attention_backward", REAL, model.attention_backward, "0.5", "1", "Same of the backward pass.",
        UP_TO(1), .spread = 0.25, .of_device = true,
        .source = "FlashAttention-2 (Dao 2023): up to 0.63 on A100"),
    ROW("model.attention_half_flops", REAL, model.attention_half_flops, "2e9", "FLOP",
        "Fixed part of the time of an attention kernel, in FLOPs at the largest peak of the device.",
        BETWEEN(0, 1e15), .spread = 0.7, .of_device = true, .source = "estimate"),
    ROW("model.memory_efficiency", REAL, model.memory_efficiency, "0.85", "1",
        "Fraction of the memory bandwidth that large memory-bound kernels reach.", UP_TO(1), .spread = 0.15,
        .of_device = true, .source = "estimate: streaming kernels on A100 and H100"),
    ROW("model.memory_half_bytes", REAL, model.memory_half_bytes, "4e6", "B",
        "Bytes of a memory-bound kernel that reaches half of that.", BETWEEN(0, 1e12), .spread = 0.7,
        .of_device = true, .source = "estimate: 2 us at 2 TB/s"),
    ROW("model.launch_s", REAL, model.launch_s, "3e-6", "s",
        "Time of a kernel launch that is not hidden by the previous kernel.", BETWEEN(0, 1), .spread = 0.7,
        .of_device = true, .source = "estimate: CUDA launches from one host thread"),
    ROW("model.collective_link_efficiency", REAL, model.collective_link_efficiency, "0.75", "1",
        "Bus bandwidth of large collectives in a node, as a fraction of node.link_bandwidth.", UP_TO(1),
        .spread = 0.2, .source = "estimate: nccl-tests on 8 A100 with NVSwitch, 230 of 300 GB/s"),
    ROW("model.collective_link_half_bytes", REAL, model.collective_link_half_bytes, "8e6", "B",
        "Bytes of a collective in a node that reaches half of that.", BETWEEN(0, 1e12), .spread = 0.7,
        .source = "estimate"),
    ROW("model.collective_network_efficiency", REAL, model.collective_network_efficiency, "0.8", "1",
        "Bus bandwidth of large collectives between nodes, as a fraction of the NICs' bandwidth.", UP_TO(1),
        .spread = 0.3, .source = "estimate: InfiniBand with GPUDirect RDMA"),
    ROW("model.collective_network_half_bytes", REAL, model.collective_network_half_bytes, "3e7", "B",
        "Bytes of a collective between nodes that reaches half of that.", BETWEEN(0, 1e12), .spread = 0.7,
        .source = "estimate"),
    ROW("model.congestion", REAL, model.congestion, "0.02", "1",
        "Slowdown of collectives between nodes, per doubling of their number: time x (1 + congestion "
        "log2(nodes)).",
        BETWEEN(0, 10), .spread = 1, .source = "estimate"),
    ROW("model.p2p_efficiency", REAL, model.p2p_efficiency, "0.8", "1",
        "Fraction of the link's or the NIC's bandwidth that large point-to-point messages reach.", UP_TO(1),
        .spread = 0.5, .source = "estimate"),
    ROW("model.overlap_slowdown", REAL, model.overlap_slowdown, "0.1", "1",
        "Slowdown of compute next to communication, which shares SMs and memory bandwidth: time x (1 + "
        "overlap_slowdown).",
        BETWEEN(0, 10), .spread = 1, .source = "estimate: a few of 108 SMs run NCCL kernels"),
    ROW("model.fragmentation", REAL, model.fragmentation, "0.02", "1",
        "Memory lost to fragmentation, as a fraction of the memory allocated.", BETWEEN(0, 1),
        .source = "estimate"),
    ROW("model.step_overhead_s", REAL, model.step_overhead_s, "0.01", "s",
        "Time of a step on the host that no kernel hides: data, logging, launching the optimizer.",
        BETWEEN(0, 60), .spread = 1.5, .source = "estimate"),

    ROW("fit.error_fraction", REAL, fit.error_fraction, "0", "1",
        "Median relative error of the step times to which `model` was fitted; 0: not fitted.",
        BETWEEN(0, 10)),
    ROW("fit.held_out_fraction", REAL, fit.held_out_fraction, "0", "1",
        "The same of every third step time, with `model` fitted to the others; 0: not known.",
        BETWEEN(0, 10)),
    ROW("fit.rows", COUNT, fit.rows, "0", "", "Number of those step times.", BETWEEN(0, 1e9)),
    ROW("fit.at_bound", NAMES, fit.at_bound, "[]", "",
        "Parameters of `model` that the fit left at a bound of their range: the data do not determine them."),
};

const int profile_row_count = sizeof profile_rows / sizeof *profile_rows;
_Static_assert(sizeof profile_rows / sizeof *profile_rows <= PROFILE_MAX_ROWS, "raise PROFILE_MAX_ROWS");

const struct profile_section profile_sections[] = {
    {"", "General keys."},
    {"device", "One GPU, or the CPU of a node: the data sheet, or measured peaks."},
    {"node", "Devices with a fast interconnect."},
    {"network", "Between nodes."},
    {"model", "Efficiency parameters: what kernels and transfers reach of these peaks."},
    {"fit", "How well `model` reproduces measured step times; written by a fit."},
};
const int profile_section_count = sizeof profile_sections / sizeof *profile_sections;

#define ATTENTION_KIND(name_, help_)                                                                       \
    {                                                                                                      \
        .name = (name_), .columns = {"heads", "sequence", "head_dim"}, .has_dtype = true,                  \
        .has_threads = true, .value = "flops", .unit = "FLOP/s", .low = 1e3, .high = 1e18, .help = (help_) \
    }
#define TRANSFER_KIND(name_, help_)                                                                       \
    {                                                                                                     \
        .name = (name_), .columns = {"ranks", "nodes", "bytes"}, .is_transfer = true, .value = "seconds", \
        .unit = "s", .low = 1e-9, .high = 1e5, .help = (help_)                                            \
    }

const struct measured_kind measured_kinds[MEASURED_KINDS] = {
    [MEASURED_MATMUL] = {.name = "matmul",
                         .columns = {"m", "n", "k"},
                         .has_dtype = true,
                         .has_threads = true,
                         .has_transposed = true,
                         .value = "flops",
                         .unit = "FLOP/s",
                         .low = 1e3,
                         .high = 1e18,
                         .help = "Rate of an m x k by k x n matmul."},
    [MEASURED_ATTENTION_FORWARD] = ATTENTION_KIND(
        "attention_forward", "Rate of causal attention over executed FLOPs; heads of all sequences."),
    [MEASURED_ATTENTION_BACKWARD] = ATTENTION_KIND("attention_backward", "Same of its backward pass."),
    [MEASURED_MEMORY] = {.name = "memory",
                         .columns = {"bytes"},
                         .value = "bytes_per_s",
                         .unit = "B/s",
                         .low = 1e3,
                         .high = 1e15,
                         .help = "Rate of a copy of half as many bytes: bytes are read plus written."},
    [MEASURED_OP] = {.name = "op",
                     .columns = {"rows", "columns"},
                     .has_op = true,
                     .has_dtype = true,
                     .has_threads = true,
                     .value = "bytes_per_s",
                     .unit = "B/s",
                     .low = 1e3,
                     .high = 1e15,
                     .help = "Rate of another op over the bytes that `cuboid plan --ops` prints."},
    [MEASURED_ALL_REDUCE] = TRANSFER_KIND("all_reduce", "Time of an all-reduce of a tensor."),
    [MEASURED_ALL_GATHER] = TRANSFER_KIND("all_gather", "Time of an all-gather; bytes of its result."),
    [MEASURED_REDUCE_SCATTER] =
        TRANSFER_KIND("reduce_scatter", "Time of a reduce-scatter; bytes of its input."),
    [MEASURED_P2P] =
        TRANSFER_KIND("p2p", "Time of a message to the next rank while all ranks send and receive one."),
};

const char *profile_dtype_name(enum profile_dtype dtype)
{
    static const char *const names[PROFILE_DTYPES] = {"fp32", "tf32", "bf16", "fp16", "fp8"};
    return names[dtype];
}

const char *profile_row_name(const struct profile_row *row)
{
    const char *dot = strchr(row->key, '.');
    return dot != NULL ? dot + 1 : row->key;
}

bool profile_row_in(const struct profile_row *row, const char *section)
{
    size_t length = strlen(section);
    return length == 0 ? strchr(row->key, '.') == NULL
                       : strncmp(row->key, section, length) == 0 && row->key[length] == '.';
}

int profile_row_find(const char *section, const char *name)
{
    for (int i = 0; i < profile_row_count; i++)
        if (profile_row_in(&profile_rows[i], section) &&
            strcmp(profile_row_name(&profile_rows[i]), name) == 0)
            return i;
    return -1;
}

int profile_row_index(const char *key)
{
    int found = -1;
    for (int i = 0; i < profile_row_count; i++)
        if (strcmp(profile_rows[i].key, key) == 0)
            found = i;
    CHECK(found >= 0);
    return found;
}

bool profile_row_applies(const struct profile_row *row, const struct cluster_profile *profile)
{
    switch (row->required) {
    case ALWAYS:
        return true;
    case IF_SEVERAL_DEVICES:
        return profile->node.devices > 1;
    case IF_NETWORK:
        return profile->network.nics > 0;
    }
    return true;
}

/* ---- fields ---- */

void *profile_field(const struct cluster_profile *profile, const struct profile_row *row)
{
    return (char *)profile + row->offset;
}

bool profile_is_number(const struct profile_row *row)
{
    return row->type == ROW_INT || row->type == ROW_COUNT || row->type == ROW_REAL;
}

double profile_number(const struct cluster_profile *profile, const struct profile_row *row)
{
    const void *field = profile_field(profile, row);
    CHECK(profile_is_number(row));
    if (row->type == ROW_INT)
        return *(const int *)field;
    return row->type == ROW_COUNT ? (double)*(const int64_t *)field : *(const double *)field;
}

void profile_set_number(struct cluster_profile *profile, const struct profile_row *row, double value)
{
    void *field = profile_field(profile, row);
    CHECK(profile_is_number(row));
    if (row->type == ROW_INT)
        *(int *)field = (int)value;
    else if (row->type == ROW_COUNT)
        *(int64_t *)field = (int64_t)value;
    else
        *(double *)field = value;
}
