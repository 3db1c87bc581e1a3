// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/layer_arena.h"

static int64_t elements_of(const struct layer_arena *arena, int layer)
{
    return arena->weights->layers[layer].elements;
}

enum status layer_arena_create(const struct weights *weights, enum dtype dtype, bool overlap,
                               struct layer_arena *out)
{
    *out = (struct layer_arena){
        .weights = weights, .dtype = dtype, .rooms = overlap ? 2 : 1, .room = {{.layer = -1}, {.layer = -1}}};
    for (int l = 0; l < weights->layer_count; l++) {
        int64_t two = elements_of(out, l) + (overlap && l > 0 ? elements_of(out, l - 1) : 0);
        out->elements = two > out->elements ? two : out->elements;
    }
    return buffer_alloc(weights->device, PART_BUCKETS, (size_t)out->elements * dtype_bytes(dtype),
                        &out->buffer);
}

void layer_arena_destroy(struct layer_arena *arena)
{
    buffer_free(&arena->buffer);
}

struct tensor layer_arena_part(const struct layer_arena *arena, int room, int64_t begin, int64_t count)
{
    int64_t at = begin + (room == 0 ? 0 : arena->elements - elements_of(arena, arena->room[room].layer));
    char *data = (char *)arena->buffer.data + (size_t)at * dtype_bytes(arena->dtype);
    return tensor_1d(data, arena->dtype, count);
}

struct tensor layer_arena_tensor(const struct layer_arena *arena, int room)
{
    return layer_arena_part(arena, room, 0, elements_of(arena, arena->room[room].layer));
}

int layer_arena_find(const struct layer_arena *arena, int layer)
{
    for (int r = 0; r < arena->rooms; r++)
        if (arena->room[r].there && arena->room[r].layer == layer)
            return r;
    return -1;
}

bool layer_arena_collide(const struct layer_arena *arena, int a, int b)
{
    return a >= 0 && b >= 0 && elements_of(arena, a) + elements_of(arena, b) > arena->elements;
}

/* Returns the next room in rotation, skipping rooms that are in use or being filled. */
static int next_room(const struct layer_arena *arena)
{
    int room = arena->turn, other = (room + 1) % arena->rooms;
    bool taken = arena->room[room].there && !arena->room[other].there;
    return taken || arena->room[room].used ? other : room;
}

enum status layer_arena_take(struct layer_arena *arena, int layer, struct stream *stream, int *out)
{
    int room = next_room(arena);
    struct room *mine = &arena->room[room], *other = arena->rooms == 2 ? &arena->room[1 - room] : NULL;
    CHECK(!mine->used);
    TRY(stream_wait(stream, mine->left));
    if (other != NULL && layer_arena_collide(arena, layer, other->layer)) {
        CHECK(!other->used);
        TRY(stream_wait(stream, other->left));
        other->there = false;
    }
    *mine = (struct room){.layer = layer, .there = true};
    arena->turn = (room + 1) % arena->rooms;
    *out = room;
    return OK;
}

void layer_arena_leave(struct layer_arena *arena, int room, struct event left)
{
    arena->room[room].there = arena->room[room].used = false;
    arena->room[room].left = left;
}
