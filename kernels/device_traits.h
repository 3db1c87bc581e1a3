// SPDX-License-Identifier: Apache-2.0
/* The registry of devices: the properties of each, also of those that this build lacks, because recipes,
 * rules and memory plans name them.
 *
 *     device_traits("cuda")->is_gpu                 true in every build
 *     device_traits("cuda")->ops                    NULL in a build without CUDA
 *
 * An open device refers to the same entry: device->ops->traits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct device_ops;

struct device_traits {
    const char *name;
    const char *summary;          // one sentence
    const struct device_ops *ops; // NULL: not in this build
    bool computes;                // false: its buffers cannot be read
    bool has_host_memory;         // its buffers are host memory, as CPU transports require
    bool synchronous;             // synchronous: an op is complete when its call returns, so that the host's
                                  // clock can time it
    bool is_gpu;                  // also if the emulator replaces it
    bool has_matmul_options;      // reads tf32, matmul_algorithms, epilogues
    bool supports_cudnn;          // supports ATTENTION_CUDNN
    bool has_memory_pool;         // reads device_options.reserve_bytes
    bool attends_to_earlier_keys; // attention with more key rows than query rows (a key/value cache)
    bool supports_graphs;         // captures graphs: stream_replay()
    bool can_be_planned;          // a dry device can count its kernels' memory
    bool poisons;                 // poison() writes NaN; elsewhere it has no effect
};

enum { MAX_DEVICES = 8 };

/* All devices, in the order of help: index 0, 1, ...; NULL past the last. Index 0 is the default device. */
const struct device_traits *device_at(size_t index);

/* The entry of this name. For an unknown name, which device_open() rejects, that of the default device. */
const struct device_traits *device_traits(const char *name);

/* Whether this build has a device of this name. */
bool device_is_built(const char *name);

extern const struct device_traits device_traits_cpu, device_traits_strict, device_traits_dry,
    device_traits_cuda;
