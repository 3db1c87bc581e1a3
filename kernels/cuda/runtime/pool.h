// SPDX-License-Identifier: Apache-2.0
/* Device memory in large pieces, cut up by the host (kernels/first_fit.h): cudaMalloc synchronises the device
 * and takes a fraction of a millisecond, so a step must not call it. A run that was planned has one piece, as
 * large as the plan says; what was not planned is taken in pieces as it comes.
 *
 * The trap: what is freed can be handed out at once, which is right only because a buffer may be freed only
 * when nothing on any stream uses it any more (kernels/device.h). */
#pragma once

#include "base/status.h"

#include <stddef.h>

struct cuda_pool;

/* reserve_bytes: taken from CUDA at once. NO_DEVICE_MEMORY says what was asked, and what is left. */
MUST_USE enum status cuda_pool_create(size_t reserve_bytes, struct cuda_pool **out);
void cuda_pool_destroy(struct cuda_pool *pool); // takes NULL; gives everything back to CUDA

/* Aligned to 256 bytes, and never touching another piece. NO_DEVICE_MEMORY says how much is left. */
MUST_USE enum status cuda_pool_take(struct cuda_pool *pool, size_t bytes, void **out);
void cuda_pool_give(struct cuda_pool *pool, void *data);
