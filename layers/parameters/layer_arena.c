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
        .weights = weights, .dtype = dtype, .slots = overlap ? 2 : 1, .slot = {{.layer = -1}, {.layer = -1}}};
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

struct tensor layer_arena_part(const struct layer_arena *arena, int slot, int64_t begin, int64_t count)
{
    int64_t at = begin + (slot == 0 ? 0 : arena->elements - elements_of(arena, arena->slot[slot].layer));
    char *data = (char *)arena->buffer.data + (size_t)at * dtype_bytes(arena->dtype);
    return tensor_1d(data, arena->dtype, count);
}

struct tensor layer_arena_tensor(const struct layer_arena *arena, int slot)
{
    return layer_arena_part(arena, slot, 0, elements_of(arena, arena->slot[slot].layer));
}

int layer_arena_find(const struct layer_arena *arena, int layer)
{
    for (int r = 0; r < arena->slots; r++)
        if (arena->slot[r].resident && arena->slot[r].layer == layer)
            return r;
    return -1;
}

bool layer_arena_collide(const struct layer_arena *arena, int a, int b)
{
    return a >= 0 && b >= 0 && elements_of(arena, a) + elements_of(arena, b) > arena->elements;
}

/* Returns the next slot in rotation, skipping slots that are in use or being filled. */
static int next_slot(const struct layer_arena *arena)
{
    int slot = arena->next, other = (slot + 1) % arena->slots;
    bool taken = arena->slot[slot].resident && !arena->slot[other].resident;
    return taken || arena->slot[slot].used ? other : slot;
}

enum status layer_arena_acquire(struct layer_arena *arena, int layer, struct stream *stream, int *out)
{
    int slot = next_slot(arena);
    struct slot *mine = &arena->slot[slot], *other = arena->slots == 2 ? &arena->slot[1 - slot] : NULL;
    CHECK(!mine->used);
    TRY(stream_wait(stream, mine->released));
    if (other != NULL && layer_arena_collide(arena, layer, other->layer)) {
        CHECK(!other->used);
        TRY(stream_wait(stream, other->released));
        other->resident = false;
    }
    *mine = (struct slot){.layer = layer, .resident = true};
    arena->next = (slot + 1) % arena->slots;
    *out = slot;
    return OK;
}

void layer_arena_release(struct layer_arena *arena, int slot, struct event released)
{
    arena->slot[slot].resident = arena->slot[slot].used = false;
    arena->slot[slot].released = released;
}
