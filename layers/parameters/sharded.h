// SPDX-License-Identifier: Apache-2.0
/* ZeRO stages 2 and 3: tensors sharded over the data ranks (weights.h) are gathered while a layer uses them
 * (1910.02054; layer by layer as in 2304.11277):
 *
 *     compute   | layer 3        | layer 2        | ...       acquire: waits for the all-gather of its values
 *     gather    |gather 2|       |gather 1|                   prefetch of one layer
 *     reduce    |        |reduce-scatter 3|                   of its gradients, after each microbatch
 *
 * Values are gathered in the working type, rounded by their owner from the values it updates; gradients are
 * fp32. Both arenas hold two neighbouring layers, one at each end, so that the next layer is gathered while
 * this one computes, and the gradients of the previous layer are reduced while this one's are computed.
 * Without overlap they hold one layer. Gradients are summed over ranks first and over microbatches second,
 * unlike in stages 0 and 1.
 *
 * Caution: outside acquire ... release the views of a layer's values are NULL, and outside open ... close
 * those of its gradients. */
#pragma once

#include "layers/parameters/weights.h"

/* Called by weights_create() with ZeRO stage 2 or 3. */
MUST_USE enum status sharded_create(struct weights *weights, const struct weights_config *config);
void sharded_destroy(struct sharded *sharded); // accepts NULL; synchronizes first

/* Makes the values of a layer available to later work on `compute`. next: the following layer, which is
 * prefetched; ignored if this rank does not hold it. One layer at a time. */
MUST_USE enum status weights_acquire(struct weights *weights, struct stream *compute, int layer, int next);
MUST_USE enum status weights_release(struct weights *weights, struct stream *compute, int layer);

/* Opens a zeroed gradient buffer for the layer's gradients of one microbatch; close reduces them and adds
 * them to the owned slice. One layer at a time. */
MUST_USE enum status weights_open_gradients(struct weights *weights, struct stream *compute, int layer);
MUST_USE enum status weights_close_gradients(struct weights *weights, struct stream *compute, int layer);

/* Makes `compute` wait until all closed gradients have been accumulated. */
MUST_USE enum status weights_finish_gradients(struct weights *weights, struct stream *compute);
