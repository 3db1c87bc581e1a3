// SPDX-License-Identifier: Apache-2.0
/* A pipeline stage: consecutive transformer blocks, with the embedding before the model's first block and the
 * head after its last. A rank has one stage per chunk. A stage may have no blocks: its output is then its
 * input.
 *
 *   x received into stage_input  ──> forward ──> stage_output is sent   (slots of the microbatch)
 *   dx in a gradient buffer ──> backward_input, in place ──> is sent
 *
 * Pipeline schedules use three actions: F, I, W; and B = I and W layer by layer. */
#pragma once

#include "layers/block.h"
#include "layers/vocab.h"

/* Part of the model. Embedding and head are given explicitly, since a stage without blocks at either end may
 * have one. */
struct stage_span {
    int first_layer, layer_count;
    bool has_embedding, has_head;
};

/* The declarations of a layer for F and for the backward pass: different where activations are recomputed. */
struct stage_layer {
    struct block forward, backward;
    int again_from; // layers [again_from, this one] of the stage are recomputed before this layer's backward
                    // pass; -1: none
};

struct stage {
    const struct env *env;
    int first_layer, layer_count;
    bool has_embedding, has_head;
    struct stage_layer *layers; // [layer_count]
    struct embedding embedding; // valid if has_embedding
    struct head head;           // valid if has_head
    struct region through; // KEEP_UNTIL_BACKWARD_INPUT [T or T/tp, H]: the output of a stage without a head
    struct layout layout;  // size of one slot of each lifetime
};

/* Called when the last gradient of a layer (LAYER_EMBEDDING, a block, num_layers) has been enqueued on the
 * compute stream. */
struct layer_done {
    enum status (*call)(void *context, int layer);
    void *context;
};

MUST_USE enum status stage_create(const struct env *env, struct stage_span span, struct stage *out);
void stage_destroy(struct stage *stage);

/* Input and output of this stage in the slots of `pass`; {0} if it has the embedding or the head,
 * respectively. */
struct tensor stage_input(const struct stage *stage, const struct pass *pass);
struct tensor stage_output(const struct stage *stage, const struct pass *pass);

MUST_USE enum status stage_forward(const struct stage *stage, const struct pass *pass);
/* dx: [T or T/tp, H], gradient of the output on entry (ignored if the stage has the head), gradient of the
 * input on return. */
MUST_USE enum status stage_backward_input(const struct stage *stage, const struct pass *pass,
                                          struct tensor dx);
MUST_USE enum status stage_backward_weight(const struct stage *stage, const struct pass *pass,
                                           struct layer_done done);
/* backward_input and backward_weight, layer by layer. */
MUST_USE enum status stage_backward(const struct stage *stage, const struct pass *pass, struct tensor dx,
                                    struct layer_done done);
