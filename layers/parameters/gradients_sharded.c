// SPDX-License-Identifier: Apache-2.0
/* ZeRO stages 2 and 3: a layer's gradients of one microbatch exist in an arena, from gradients_begin()
 * until they are reduced and added to this rank's slice:
 *
 *     compute   | layer 3 | layer 2 | ...
 *     reduce              | reduce-scatter 3, add | ...
 *
 * Caution: outside begin ... end the views of a layer's gradients are NULL. */
#include "layers/parameters/gradients.h"
#include "layers/parameters/layer_arena.h"

struct sharded_gradients {
    struct gradients base;
    struct layer_arena arena;
    struct stream *reduce;
};

static enum status open_sharded(struct gradients *g, const struct weights_config *config)
{
    struct sharded_gradients *s = (struct sharded_gradients *)g;
    TRY(stream_create(g->weights->device, "reduce", &s->reduce));
    return layer_arena_create(g->weights, F32, config->options->overlap_grad_reduce, &s->arena);
}

static void close_sharded(struct gradients *g)
{
    struct sharded_gradients *s = (struct sharded_gradients *)g;
    stream_destroy(s->reduce);
    layer_arena_destroy(&s->arena);
}

static bool communicates(const struct gradients *g, bool is_last)
{
    (void)g;
    (void)is_last; // after every microbatch
    return true;
}

/* Points the gradient of each parameter of the layer into the slot; slot -1: sets it to NULL. */
static void point_views(const struct sharded_gradients *s, const struct held_layer *layer, int slot)
{
    for (int i = layer->first; i < layer->first + layer->count; i++) {
        struct held_param *held = &s->base.weights->list[i];
        int64_t begin = held->gradient_offset - layer->begin;
        held->gradient.data = slot >= 0 ? layer_arena_part(&s->arena, slot, begin, 0).data : NULL;
    }
}

static enum status begin(struct gradients *g, struct stream *compute, const struct held_layer *layer)
{
    struct sharded_gradients *s = (struct sharded_gradients *)g;
    int slot;
    TRY(layer_arena_acquire(&s->arena, (int)(layer - g->weights->layers), compute, &slot));
    s->arena.slot[slot].used = true;
    point_views(s, layer, slot);
    return fill(compute, (struct fill){.out = layer_arena_tensor(&s->arena, slot), .value = 0.0F});
}

/* Adds this rank's slices of the sums over ranks to the sums of earlier microbatches. */
static enum status reduce(struct sharded_gradients *s, const struct held_layer *layer, int slot)
{
    const struct weights *w = s->base.weights;
    for (int b = layer->first_bucket; b < layer->first_bucket + layer->buckets; b++) {
        const struct bucket *bucket = &w->plan.buckets[b];
        int64_t begin = bucket->begin - layer->begin,
                own = bucket_slice_begin(bucket, w->rank) - layer->begin;
        int64_t count = bucket->counts[w->rank], all = bucket->end - bucket->begin;
        TRY(group_reduce_scatter_v(w->group_of[b], s->reduce, layer_arena_part(&s->arena, slot, begin, all),
                                   bucket->counts));
        if (count > 0)
            TRY(add(s->reduce, (struct add){.in = layer_arena_part(&s->arena, slot, own, count),
                                            .out = weights_gradient_slice(w, b)}));
    }
    return OK;
}

static enum status end(struct gradients *g, struct stream *compute, const struct held_layer *layer)
{
    struct sharded_gradients *s = (struct sharded_gradients *)g;
    int slot = layer_arena_find(&s->arena, (int)(layer - g->weights->layers));
    CHECK(slot >= 0 && s->arena.slot[slot].used);
    TRY(stream_wait(s->reduce, stream_record(compute)));
    TRY(reduce(s, layer, slot));
    TRY(poison(s->reduce, (struct poison){.out = layer_arena_tensor(&s->arena, slot)}));
    layer_arena_release(&s->arena, slot, stream_record(s->reduce));
    point_views(s, layer, -1);
    return s->arena.slots == 2 ? OK : stream_wait(compute, s->arena.slot[slot].released);
}

static enum status finish_reduce(struct gradients *g, struct stream *compute)
{
    struct sharded_gradients *s = (struct sharded_gradients *)g;
    TRY(stream_wait(compute, stream_record(s->reduce)));
    return g->stage_replicas != NULL
               ? group_all_reduce(g->stage_replicas, compute, g->weights->flat_gradient, REDUCE_SUM)
               : OK;
}

static struct layer_arena *arena(struct gradients *g)
{
    return &((struct sharded_gradients *)g)->arena;
}

const struct gradients_ops gradients_sharded = {
    .bytes = sizeof(struct sharded_gradients),
    .open = open_sharded,
    .close = close_sharded,
    .communicates = communicates,
    .begin = begin,
    .end = end,
    .finish_reduce = finish_reduce,
    .arena = arena,
};
