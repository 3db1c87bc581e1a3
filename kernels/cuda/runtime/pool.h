// SPDX-License-Identifier: Apache-2.0
/* A pool of device memory in large segments, suballocated by the host (kernels/first_fit.h): cudaMalloc
 * synchronizes the device and takes a fraction of a millisecond, so a step must not call it. A planned run
 * has one segment of the planned size; further segments are allocated on demand.
 *
 * Caution: freed memory is reused at once. This is correct only because a buffer must not be freed while a
 * stream still uses it (kernels/device.h). */
#pragma once

#include "base/status.h"

#include <stddef.h>

struct cuda_pool;

/* reserve_bytes: allocated from CUDA at once. NO_DEVICE_MEMORY reports the bytes requested and free. */
MUST_USE enum status cuda_pool_create(size_t reserve_bytes, struct cuda_pool **out);
void cuda_pool_destroy(struct cuda_pool *pool); // accepts NULL; returns all memory to CUDA

/* Allocates an aligned (256 bytes), disjoint block. NO_DEVICE_MEMORY reports the free memory. */
MUST_USE enum status cuda_pool_alloc(struct cuda_pool *pool, size_t bytes, void **out);
void cuda_pool_free(struct cuda_pool *pool, void *data);
