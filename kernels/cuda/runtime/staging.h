// SPDX-License-Identifier: Apache-2.0
/* Copies between the host's memory and the device that do not block the host. The GPU reads and writes by
 * itself only what is pinned; ordinary memory goes through a ring of pinned slots.
 *
 *     to the device:  host ──memcpy now──> slot ──on the stream──> device
 *     to the host:    device ──on the stream──> slot ──memcpy when somebody synchronises──> host
 *
 * A ring that is full waits for its oldest slot. So a large copy moves at the speed of its slots, and the
 * host's memory of a copy to the device may be used again at once.
 *
 * What leaves the device for a while (PART_HOST) is pinned itself, and its copies are the stream's alone: the
 * host neither touches it nor waits. Only between that memory and ordinary memory, as when a checkpoint is
 * saved, does CUDA let the host wait for a copy. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

struct cuda_staging;

MUST_USE enum status cuda_staging_create(struct cuda_staging **out);
void cuda_staging_destroy(struct cuda_staging *staging); // takes NULL; what was not delivered is dropped

/* Memory of the host that the GPU copies to and from by itself: zeros. */
MUST_USE enum status cuda_staging_pin(struct cuda_staging *staging, size_t bytes, void **out);
void cuda_staging_unpin(struct cuda_staging *staging, void *data);

MUST_USE enum status cuda_staging_copy(struct cuda_staging *staging, struct cuda_queue *queue,
                                       enum op_kind kind, const struct transfer *transfer);
/* Delivers to the host what has arrived from the device. Called whenever the host has synchronised. */
MUST_USE enum status cuda_staging_deliver(struct cuda_staging *staging);
