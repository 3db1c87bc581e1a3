// SPDX-License-Identifier: Apache-2.0
/* Device memory in large pieces, cut up by the host: cudaMalloc synchronises the device and takes a fraction
 * of a millisecond, so a step must not call it. First fit in address order; neighbours that are free become
 * one.
 *
 * The trap: what is freed can be handed out at once, which is right only because a buffer may be freed only
 * when nothing on any stream uses it any more (kernels/device.h). */
#pragma once

#include "base/status.h"

#include <stddef.h>

struct cuda_pool;

MUST_USE enum status cuda_pool_create(struct cuda_pool **out);
void cuda_pool_destroy(struct cuda_pool *pool); // takes NULL; gives everything back to CUDA

/* Aligned to 256 bytes, and never touching another piece. NO_MEMORY says how much the device has left. */
MUST_USE enum status cuda_pool_take(struct cuda_pool *pool, size_t bytes, void **out);
void cuda_pool_give(struct cuda_pool *pool, void *data);
