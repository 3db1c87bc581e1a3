// SPDX-License-Identifier: Apache-2.0
/* File-backed offload memory, for devices in host memory. */
#pragma once

#include "kernels/device.h"

/* In $TMPDIR, or /tmp. NO_MEMORY or IO_ERROR name the folder that is full. */
MUST_USE enum status cpu_host_alloc(struct device *device, size_t bytes, void **out);
void cpu_host_free(struct device *device, void *data, size_t bytes);
/* Hint: these bytes are not accessed for a while; their pages may be reclaimed. Contents are preserved. */
void cpu_host_page_out(void *data, size_t bytes);
