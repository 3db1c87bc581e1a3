// SPDX-License-Identifier: Apache-2.0
/* ZeRO stage 3: values sharded over the data ranks (weights.h) are gathered while a layer uses them
 * (1910.02054; layer by layer as in 2304.11277):
 *
 *     compute   | layer 3        | layer 2        | ...       acquire: waits for the all-gather of its values
 *     gather    |gather 2|       |gather 1|                   prefetch of one layer
 *
 * Values are gathered in the working type, rounded by their owner from the values it updates. The arena
 * holds two neighbouring layers (layer_arena.h), so that the next layer is gathered while this one
 * computes; without overlap it holds one.
 *
 * Caution: outside acquire ... release the views of a layer's values are NULL. */
#pragma once

#include "layers/parameters/weights.h"

/* Called by weights_create() with ZeRO stage 3. */
MUST_USE enum status sharded_create(struct weights *weights, const struct weights_config *config);
void sharded_destroy(struct sharded *sharded); // accepts NULL; synchronizes first

/* Makes the values of a layer available to later work on `compute`. next: the following layer, which is
 * prefetched; ignored if this rank does not hold it. One layer at a time. Other ZeRO stages: no effect. */
MUST_USE enum status weights_acquire(struct weights *weights, struct stream *compute, int layer, int next);
MUST_USE enum status weights_release(struct weights *weights, struct stream *compute, int layer);

/* The buffers of gathered layers, for plans; NULL without ZeRO stage 3. */
struct layer_arena *weights_arena(const struct weights *weights);
