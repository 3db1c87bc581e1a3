// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/gradients.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum status gradients_create(struct weights *weights, const struct weights_config *config)
{
    const struct gradients_ops *ops = weights->zero_stage >= 2 ? &gradients_sharded : &gradients_bucketed;
    if (config->groups == NULL)
        return fail(BAD_ARGUMENT, "gradients need the groups that reduce them");
    struct gradients *g = memory_zeroed(1, ops->bytes, "the gradients of a rank");
    weights->gradients = g; // set first, so that weights_destroy() frees it after an error
    g->ops = ops;
    g->weights = weights;
    g->stage_replicas = config->groups->stage_replicas;
    g->ready = memory_zeroed((size_t)weights->layer_count, sizeof *g->ready, "the gradients of layers");
    TRY(gradients_check(g));
    return ops->open(g, config);
}

void gradients_destroy(struct gradients *gradients)
{
    if (gradients == NULL)
        return;
    gradients->ops->close(gradients);
    free(gradients->ready);
    free(gradients);
}

/* ---- invariants ---- */

static enum status check_layers(const struct weights *w)
{
    int next = 0;
    int64_t end = 0;
    for (int l = 0; l < w->layer_count; l++) {
        const struct held_layer *layer = &w->layers[l];
        if (layer->first != next || layer->begin < end || weights_layer(w, layer->layer) != layer)
            return fail(BAD_ARGUMENT, "gradients of layer %d: not adjacent to those before them",
                        layer->layer);
        next = layer->first + layer->count;
        end = layer->begin + layer->elements;
    }
    return next == w->count ? OK : fail(BAD_ARGUMENT, "gradients: %d of %d have a layer", next, w->count);
}

static enum status check_buckets(const struct weights *w)
{
    for (int b = 0; b < w->plan.count; b++) {
        const struct bucket *bucket = &w->plan.buckets[b];
        const struct param *first = w->list[bucket->first].param;
        for (int i = bucket->first; i < bucket->first + bucket->count; i++) {
            const struct param *param = w->list[i].param;
            if (param->mesh != first->mesh || (w->zero_stage >= 2 && param->layer != first->layer))
                return fail(BAD_ARGUMENT, "gradients of %s and %s share a bucket, but not a reduction",
                            first->name, param->name);
        }
        if (w->group_of[b] == NULL)
            return fail(BAD_ARGUMENT, "gradient of %s: no group reduces it", first->name);
    }
    return OK;
}

enum status gradients_check(const struct gradients *gradients)
{
    TRY(check_layers(gradients->weights));
    return check_buckets(gradients->weights);
}

/* ---- a step ---- */

static const struct held_layer *layer_of(const struct gradients *g, int layer)
{
    const struct held_layer *held = weights_layer(g->weights, layer);
    CHECK(held != NULL);
    return held;
}

enum status gradients_zero(struct gradients *gradients, struct stream *compute)
{
    CHECK_USE(gradients_check(gradients));
    memset(gradients->ready, 0, (size_t)gradients->weights->layer_count * sizeof *gradients->ready);
    return fill(compute, (struct fill){.out = gradients->weights->flat_gradient, .value = 0.0F});
}

enum status gradients_begin(struct gradients *gradients, struct stream *compute, int layer)
{
    return gradients->ops->begin != NULL
               ? gradients->ops->begin(gradients, compute, layer_of(gradients, layer))
               : OK;
}

enum status gradients_end(struct gradients *gradients, struct stream *compute, int layer, bool is_last)
{
    if (gradients->ops->end != NULL)
        TRY(gradients->ops->end(gradients, compute, layer_of(gradients, layer)));
    return is_last ? gradients_mark_ready(gradients, compute, layer) : OK;
}

enum status gradients_mark_ready(struct gradients *gradients, struct stream *compute, int layer)
{
    const struct held_layer *held = layer_of(gradients, layer);
    bool *ready = &gradients->ready[held - gradients->weights->layers];
    if (*ready)
        return fail(BAD_ARGUMENT, "gradients of layer %d: marked ready twice in one step", layer);
    *ready = true;
    return gradients->ops->mark_ready != NULL ? gradients->ops->mark_ready(gradients, compute, held) : OK;
}

enum status gradients_finish_reduce(struct gradients *gradients, struct stream *compute)
{
    for (int l = 0; l < gradients->weights->layer_count; l++)
        if (!gradients->ready[l])
            return fail(BAD_ARGUMENT, "gradients of layer %d: never marked ready in this step",
                        gradients->weights->layers[l].layer);
    return gradients->ops->finish_reduce(gradients, compute);
}

bool gradients_communicates(const struct gradients *gradients, bool is_last)
{
    return gradients->ops->communicates(gradients, is_last);
}

struct layer_arena *gradients_arena(struct gradients *gradients)
{
    return gradients->ops->arena != NULL ? gradients->ops->arena(gradients) : NULL;
}
