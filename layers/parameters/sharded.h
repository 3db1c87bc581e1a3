// SPDX-License-Identifier: Apache-2.0
/* What ZeRO 2 and 3 cut over the data ranks (weights.h) is brought together for as long as one layer
 * needs it (1910.02054; layer by layer as in 2304.11277):
 *
 *     compute   | layer 3        | layer 2        | ...       acquire: waits for the gather of its values
 *     gather    |gather 2|       |gather 1|                   ahead of use, by one layer
 *     reduce    |        |reduce-scatter 3|                   of its gradients, behind each microbatch
 *
 * Values are gathered in the type that layers compute with, rounded by their owner from what it updates;
 * gradients are fp32. Both kinds of memory have room for two neighbours, one at each end, so that the next
 * layer is gathered while this one computes, and the last one's gradients leave while this one makes its own;
 * without overlap for one. Sums over the ranks come first, and then those over microbatches: not the order of
 * stages 0 and 1.
 *
 * The trap: between release and acquire the views of a layer's values lead nowhere, and so do those of its
 * gradients between close and open. Every use stands between the two. */
#pragma once

#include "layers/parameters/weights.h"

/* For weights_create(), with ZeRO's stage 2 or 3. */
MUST_USE enum status sharded_create(struct weights *weights, const struct weights_config *config);
void sharded_destroy(struct sharded *sharded); // takes NULL; synchronises first

/* The values of a layer, from now on on `compute`. `next`: the layer after it, whose gather may begin; one
 * that this rank does not hold: none. One layer at a time. */
MUST_USE enum status weights_acquire(struct weights *weights, struct stream *compute, int layer, int next);
MUST_USE enum status weights_release(struct weights *weights, struct stream *compute, int layer);

/* Gradients of a layer, zero, to add those of one microbatch to; and then into what this rank owns. One layer
 * at a time. */
MUST_USE enum status weights_open_gradients(struct weights *weights, struct stream *compute, int layer);
MUST_USE enum status weights_close_gradients(struct weights *weights, struct stream *compute, int layer);

/* `compute` continues when all that was closed is added up. */
MUST_USE enum status weights_finish_gradients(struct weights *weights, struct stream *compute);
