// SPDX-License-Identifier: Apache-2.0
/* Memory for the sharded tensors of a layer and of one neighbour, one at each end, so that the next layer is
 * gathered, or the previous one reduced, while this one computes. Without overlap it holds one layer:
 *
 *     | layer 3 ........ |   free   | ... layer 2 |
 *
 * A slot is one end. It is acquired on a stream that waits until its previous contents are released; two
 * layers that do not fit next to each other also wait for each other. */
#pragma once

#include "layers/parameters/weights.h"

/* One end of an arena: the buffer of one layer. */
struct slot {
    int layer;             // current or last one, an index of weights->layers; -1: none
    bool resident;         // filled, or being filled
    bool used;             // by the caller
    struct event filled;   // after it the contents may be read
    struct event released; // after it the buffer may be overwritten
};

struct layer_arena {
    const struct weights *weights;
    struct buffer buffer;
    enum dtype dtype;
    int64_t elements;
    int slots; // 1 without overlap
    int next;  // next slot to use
    struct slot slot[2];
};

MUST_USE enum status layer_arena_create(const struct weights *weights, enum dtype dtype, bool overlap,
                                        struct layer_arena *out);
void layer_arena_destroy(struct layer_arena *arena);

/* Returns `count` elements of a slot's layer, starting at element `begin`; or all of them. */
struct tensor layer_arena_part(const struct layer_arena *arena, int slot, int64_t begin, int64_t count);
struct tensor layer_arena_tensor(const struct layer_arena *arena, int slot);

/* Returns the slot that holds a layer; -1 if there is none. */
int layer_arena_find(const struct layer_arena *arena, int layer);

/* Returns true if two layers do not fit next to each other; -1 fits everywhere. */
bool layer_arena_collide(const struct layer_arena *arena, int a, int b);

/* Assigns the next slot, *out, to a layer, on `stream`, after its previous contents have been released. */
MUST_USE enum status layer_arena_acquire(struct layer_arena *arena, int layer, struct stream *stream,
                                         int *out);
void layer_arena_release(struct layer_arena *arena, int slot, struct event released);
