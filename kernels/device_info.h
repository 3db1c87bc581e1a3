// SPDX-License-Identifier: Apache-2.0
/* Descriptions of the machine's devices, for doctor: no device stays open. */
#pragma once

#include "base/text.h"

/* Counts the devices of this name: GPUs, or 1 for a host device. NOT_SUPPORTED as from device_open(). */
MUST_USE enum status device_count(const char *name, int *out);
/* Describes one: "NVIDIA H200, compute capability 9.0, 139.8 GiB, 0000:1b:00.0". */
MUST_USE enum status device_describe(const char *name, int index, struct text *out);
/* Describes its libraries, as found here: "driver CUDA 13.0, runtime 12.4, cuBLASLt 12.4.5". */
void device_describe_libraries(const char *name, struct text *out);

/* The same as values. */
struct device_info {
    char name[128];
    int cores;              // SMs of a GPU; CPUs available to this process
    int64_t memory_bytes;   // total
    int64_t reserved_bytes; // of a GPU: in use by its context, and by other processes
};
MUST_USE enum status device_query_info(const char *name, int index, struct device_info *out);
