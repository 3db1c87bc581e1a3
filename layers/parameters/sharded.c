// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/sharded.h"

#include "base/memory.h"
#include "layers/parameters/layer_arena.h"

#include <stdlib.h>

struct sharded {
    struct weights *weights;
    struct layer_arena arena;
    struct stream *gather;
};

enum status sharded_create(struct weights *weights, const struct weights_config *config)
{
    struct sharded *s = memory_zeroed(1, sizeof *s, "sharded parameters");
    weights->sharded = s; // set first, so that weights_destroy() frees it after an error
    s->weights = weights;
    TRY(stream_create(weights->device, "gather", &s->gather));
    return layer_arena_create(weights, weights->working, config->options->overlap_param_gather, &s->arena);
}

void sharded_destroy(struct sharded *sharded)
{
    if (sharded == NULL)
        return;
    stream_destroy(sharded->gather);
    layer_arena_destroy(&sharded->arena);
    free(sharded);
}

/* Returns the index of a layer in weights->layers; -1 if this rank does not hold it. */
static int index_of(const struct sharded *s, int layer)
{
    const struct held_layer *held = weights_layer(s->weights, layer);
    return held != NULL ? (int)(held - s->weights->layers) : -1;
}

/* Points the value of each parameter of the layer into the slot; slot -1: sets it to NULL. */
static void point_views(const struct sharded *s, int index, int slot)
{
    const struct held_layer *layer = &s->weights->layers[index];
    for (int i = layer->first; i < layer->first + layer->count; i++) {
        struct held_param *held = &s->weights->list[i];
        int64_t begin = held->gradient_offset - layer->begin;
        held->weight.data = slot >= 0 ? layer_arena_part(&s->arena, slot, begin, 0).data : NULL;
    }
}

/* Copies; rounds if layers compute in a smaller type than the optimizer's. */
static enum status copy_or_cast(struct stream *stream, struct tensor in, struct tensor out)
{
    return in.dtype == out.dtype ? copy(stream, (struct copy){.in = in, .out = out})
                                 : cast(stream, (struct cast){.in = in, .out = out});
}

static enum status gather(struct sharded *s, int index, int *out)
{
    const struct weights *w = s->weights;
    const struct held_layer *layer = &w->layers[index];
    TRY(layer_arena_acquire(&s->arena, index, s->gather, out));
    TRY(stream_wait(s->gather, w->updated));
    for (int b = layer->first_bucket; b < layer->first_bucket + layer->buckets; b++) {
        const struct bucket *bucket = &w->plan.buckets[b];
        int64_t begin = bucket->begin - layer->begin,
                own = bucket_slice_begin(bucket, w->rank) - layer->begin;
        int64_t count = bucket->counts[w->rank], all = bucket->end - bucket->begin;
        if (count > 0)
            TRY(copy_or_cast(s->gather, weights_value_slice(w, b),
                             layer_arena_part(&s->arena, *out, own, count)));
        TRY(group_all_gather_v(w->group_of[b], s->gather, layer_arena_part(&s->arena, *out, begin, all),
                               bucket->counts));
    }
    s->arena.slot[*out].filled = stream_record(s->gather);
    return OK;
}

/* Prefetches the layer after `index` if it fits next to it. */
static enum status prefetch(struct sharded *s, int index, int next_layer)
{
    int slot, next = index_of(s, next_layer);
    bool can =
        next >= 0 && next != index && s->arena.slots == 2 && !layer_arena_collide(&s->arena, index, next);
    return can && layer_arena_find(&s->arena, next) < 0 ? gather(s, next, &slot) : OK;
}

enum status weights_acquire(struct weights *weights, struct stream *compute, int layer, int next)
{
    struct sharded *s = weights->sharded;
    if (s == NULL)
        return OK;
    int index = index_of(s, layer), slot = layer_arena_find(&s->arena, index);
    CHECK(index >= 0);
    if (slot < 0)
        TRY(gather(s, index, &slot));
    CHECK(!s->arena.slot[slot].used);
    s->arena.slot[slot].used = true;
    TRY(stream_wait(compute, s->arena.slot[slot].filled));
    point_views(s, index, slot);
    return prefetch(s, index, next);
}

struct layer_arena *weights_arena(const struct weights *weights)
{
    return weights->sharded != NULL ? &weights->sharded->arena : NULL;
}

enum status weights_release(struct weights *weights, struct stream *compute, int layer)
{
    struct sharded *s = weights->sharded;
    if (s == NULL)
        return OK;
    int index = index_of(s, layer), slot = layer_arena_find(&s->arena, index);
    CHECK(slot >= 0 && s->arena.slot[slot].used);
    TRY(poison(compute, (struct poison){.out = layer_arena_tensor(&s->arena, slot)}));
    layer_arena_release(&s->arena, slot, stream_record(compute));
    point_views(s, index, -1);
    return OK;
}
