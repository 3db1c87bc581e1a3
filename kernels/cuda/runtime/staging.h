// SPDX-License-Identifier: Apache-2.0
/* Asynchronous copies between host and device. DMA requires pinned memory; pageable memory is staged through
 * a ring of pinned slots.
 *
 *     to the device:  host ──memcpy now──> slot ──on the stream──> device
 *     to the host:    device ──on the stream──> slot ──memcpy at the next synchronization──> host
 *
 * A full ring waits for its oldest slot. A large copy therefore runs at the ring's throughput, and the host
 * source of a copy to the device may be reused at once.
 *
 * Offload buffers (PART_HOST) are pinned themselves, and their copies run entirely on the stream: the host
 * neither touches them nor waits. Only copies between offload buffers and pageable memory, such as for a
 * checkpoint, make the host wait. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

struct cuda_staging;

MUST_USE enum status cuda_staging_create(struct cuda_staging **out);
void cuda_staging_destroy(struct cuda_staging *staging); // accepts NULL; undelivered data is dropped

/* Allocates zeroed pinned host memory. */
MUST_USE enum status cuda_staging_pin(struct cuda_staging *staging, size_t bytes, void **out);
void cuda_staging_unpin(struct cuda_staging *staging, void *data);

MUST_USE enum status cuda_staging_copy(struct cuda_staging *staging, struct cuda_queue *queue,
                                       enum op_kind kind, const struct transfer *transfer);
/* Copies completed transfers from the slots to the host. Called after every host synchronization. */
MUST_USE enum status cuda_staging_deliver(struct cuda_staging *staging);
