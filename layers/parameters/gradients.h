// SPDX-License-Identifier: Apache-2.0
/* The gradients of a rank's layers, from the first microbatch of a step to the sum over all of its reduction
 * group. Pipeline stages call it, with every ZeRO stage:
 *
 *                               ZeRO 0 and 1: bucketed               ZeRO 2 and 3: sharded
 *     gradients_zero            zeroes all gradients                 zeroes this rank's slices
 *     gradients_begin           -                                    opens a zeroed buffer for the layer
 *       ... the weight gradients of a microbatch are enqueued, and added to held->gradient
 *     gradients_end             -                                    reduce-scatter, add to the slices
 *       with is_last            the layer's buckets may start        -
 *     gradients_finish_reduce   waits for all buckets                waits; sums stage replicas
 *
 * The group that reduces a gradient follows from the mesh of its parameter (groups_of()). A bucket
 * has one group, and a layer may have several buckets, so its parameters may be of different meshes
 * (weights->group_of).
 *
 * Order: bucketed gradients are summed over microbatches first and over ranks second, sharded ones the
 * other way round. Sums do not depend on the bucket size.
 *
 * Caution: gradients_begin() and gradients_end() may be captured in a CUDA graph, whose replay does not
 * call them again. It must contain no communication: see gradients_communicates(). */
#pragma once

#include "layers/parameters/weights.h"

struct gradients_ops;

struct gradients {
    const struct gradients_ops *ops;
    struct weights *weights;
    struct group *stage_replicas; // NULL if each stage has one copy
    bool *ready;                  // [weights->layer_count] marked in this step
};

/* `layer` is one of weights->layers. NULL: nothing to do. */
struct gradients_ops {
    size_t bytes; // of the struct that starts with struct gradients
    enum status (*open)(struct gradients *gradients, const struct weights_config *config);
    void (*close)(struct gradients *gradients); // also after a failed open
    bool (*communicates)(const struct gradients *gradients, bool is_last);
    enum status (*begin)(struct gradients *gradients, struct stream *compute, const struct held_layer *layer);
    enum status (*end)(struct gradients *gradients, struct stream *compute, const struct held_layer *layer);
    enum status (*mark_ready)(struct gradients *gradients, struct stream *compute,
                              const struct held_layer *layer);
    enum status (*finish_reduce)(struct gradients *gradients, struct stream *compute);
    struct layer_arena *(*arena)(struct gradients *gradients); // NULL: none
};
extern const struct gradients_ops gradients_bucketed, gradients_sharded;

/* Called by weights_create() for training: sets weights->gradients. */
MUST_USE enum status gradients_create(struct weights *weights, const struct weights_config *config);
void gradients_destroy(struct gradients *gradients); // accepts NULL; synchronizes first

/* Invariants: the layers cover all held parameters, in flat order; and each bucket contains parameters of one
 * reduction group, with sharded gradients of one layer. BAD_ARGUMENT if violated. */
MUST_USE enum status gradients_check(const struct gradients *gradients);

/* Begins a step. */
MUST_USE enum status gradients_zero(struct gradients *gradients, struct stream *compute);
/* Makes held->gradient of the layer's parameters writable. One layer at a time. */
MUST_USE enum status gradients_begin(struct gradients *gradients, struct stream *compute, int layer);
/* Call it after the layer's gradients of a microbatch were enqueued on `compute`. is_last: the layer has no
 * further microbatch in this step. */
MUST_USE enum status gradients_end(struct gradients *gradients, struct stream *compute, int layer,
                                   bool is_last);
/* Marks the layer's gradients as ready to be reduced: part of gradients_end() with is_last; called directly
 * for a layer without microbatches. BAD_ARGUMENT if it is marked already. */
MUST_USE enum status gradients_mark_ready(struct gradients *gradients, struct stream *compute, int layer);
/* Makes `compute` wait until all gradients are reduced. BAD_ARGUMENT if a layer is not marked ready. */
MUST_USE enum status gradients_finish_reduce(struct gradients *gradients, struct stream *compute);

/* Returns true if gradients_end() starts communication. */
bool gradients_communicates(const struct gradients *gradients, bool is_last);

/* The buffers of a layer's gradients, for plans; NULL with ZeRO stages 0 and 1. */
struct layer_arena *gradients_arena(struct gradients *gradients);
