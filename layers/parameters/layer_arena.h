// SPDX-License-Identifier: Apache-2.0
/* Memory for the sharded tensors of a layer and of one neighbour, one at each end, so that the next layer is
 * gathered, or the previous one reduced, while this one computes. Without overlap it holds one layer:
 *
 *     | layer 3 ........ |   free   | ... layer 2 |
 *
 * A room is one end. It is taken on a stream that waits for its previous contents to be released; two
 * layers that do not fit next to each other also wait for each other. */
#pragma once

#include "layers/parameters/weights.h"

/* One end of an arena: the buffer of one layer. */
struct room {
    int layer;           // current or last one, an index of weights->layers; -1: none
    bool there;          // filled, or being filled
    bool used;           // by the caller
    struct event filled; // after it the contents may be read
    struct event left;   // after it the buffer may be overwritten
};

struct layer_arena {
    const struct weights *weights;
    struct buffer buffer;
    enum dtype dtype;
    int64_t elements;
    int rooms; // 1 without overlap
    int turn;  // next room to use
    struct room room[2];
};

MUST_USE enum status layer_arena_create(const struct weights *weights, enum dtype dtype, bool overlap,
                                        struct layer_arena *out);
void layer_arena_destroy(struct layer_arena *arena);

/* Returns `count` elements of a room's layer, starting at element `begin`; or all of them. */
struct tensor layer_arena_part(const struct layer_arena *arena, int room, int64_t begin, int64_t count);
struct tensor layer_arena_tensor(const struct layer_arena *arena, int room);

/* Returns the room that holds a layer; -1 if there is none. */
int layer_arena_find(const struct layer_arena *arena, int layer);

/* Returns true if two layers do not fit next to each other; -1 fits everywhere. */
bool layer_arena_collide(const struct layer_arena *arena, int a, int b);

/* Assigns the next room to a layer, on `stream`, after its previous contents have been released. */
MUST_USE enum status layer_arena_take(struct layer_arena *arena, int layer, struct stream *stream, int *room);
void layer_arena_leave(struct layer_arena *arena, int room, struct event left);
