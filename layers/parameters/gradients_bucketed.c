// SPDX-License-Identifier: Apache-2.0
/* ZeRO stages 0 and 1: gradients of all microbatches accumulate in one flat buffer. The reduction of a bucket
 * (parallel/buckets.h) starts while the backward pass computes earlier layers. */
#include "layers/parameters/gradients.h"
#include "parallel/buckets.h"

struct bucketed {
    struct gradients base;
    struct buckets *buckets;
};

static enum status open_bucketed(struct gradients *g, const struct weights_config *config)
{
    const struct weights *weights = g->weights;
    struct buckets_config buckets = {
        .group_of = weights->group_of,
        .stage_replicas = g->stage_replicas,
        .device = weights->device,
        .gradients = weights->flat_gradient,
        .plan = &weights->plan,
        .scatter = weights->zero_stage > 0,
        .options = config->options,
    };
    return buckets_create(&buckets, &((struct bucketed *)g)->buckets);
}

static void close_bucketed(struct gradients *g)
{
    buckets_destroy(((struct bucketed *)g)->buckets);
}

/* Without other ranks to sum over, a bucket that starts sends nothing. */
static bool communicates(const struct gradients *g, bool is_last)
{
    bool alone = g->stage_replicas == NULL;
    for (int b = 0; b < g->weights->plan.count; b++)
        alone = alone && g->weights->group_of[b]->size == 1;
    return is_last && !alone;
}

static enum status mark_ready(struct gradients *g, struct stream *compute, const struct held_layer *layer)
{
    return buckets_mark_ready(((struct bucketed *)g)->buckets, layer->first, layer->count,
                              stream_record(compute));
}

static enum status finish_reduce(struct gradients *g, struct stream *compute)
{
    return buckets_wait(((struct bucketed *)g)->buckets, compute);
}

const struct gradients_ops gradients_bucketed = {
    .bytes = sizeof(struct bucketed),
    .open = open_bucketed,
    .close = close_bucketed,
    .communicates = communicates,
    .mark_ready = mark_ready,
    .finish_reduce = finish_reduce,
};
