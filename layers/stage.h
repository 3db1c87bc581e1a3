// SPDX-License-Identifier: Apache-2.0
/* A stage is a run of consecutive blocks, with the embedding before the first of the model and the head
 * behind the last. A rank has one stage for each of its chunks. A stage may have no block at all: then what
 * comes in goes out.
 *
 *   x lands in stage_input ──> forward ──> stage_output leaves          (a microbatch's own slots)
 *   dx in a gradient buffer ──> backward_input, in place ──> leaves
 *
 * The three actions are all a pipeline schedule knows of: F, I, W, and B = I and W layer by layer. */
#pragma once

#include "layers/block.h"
#include "layers/vocab.h"

/* Which part of the model: the embedding and the head are said, since a stage without blocks at either end
 * may have one. */
struct stage_span {
    int first_layer, layer_count;
    bool has_embedding, has_head;
};

/* A layer as F sees it, and as the backward pass does: apart where something is computed again. */
struct stage_layer {
    struct block forward, backward;
    int again_from; // before its backward pass, layers [again_from, this one] of the stage are computed
                    // again; -1: none
};

struct stage {
    const struct env *env;
    int first_layer, layer_count;
    bool has_embedding, has_head;
    struct stage_layer *layers; // layer_count of them
    struct embedding embedding; // where it has one
    struct head head;           // where it has one
    struct region through; // KEEP_UNTIL_BACKWARD_INPUT [T or T/tp, H]: the output, where there is no head
    struct layout layout;  // what one slot of each home must hold
};

/* Called when the last gradient of a layer (LAYER_EMBEDDING, a block, num_layers) has been put on the
 * compute stream. */
struct layer_done {
    enum status (*call)(void *context, int layer);
    void *context;
};

MUST_USE enum status stage_create(const struct env *env, struct stage_span span, struct stage *out);
void stage_destroy(struct stage *stage);

/* Where this stage's input lands and its output lies, in the slots of `pass`; {0} where it has the
 * embedding, or the head. */
struct tensor stage_input(const struct stage *stage, const struct pass *pass);
struct tensor stage_output(const struct stage *stage, const struct pass *pass);

MUST_USE enum status stage_forward(const struct stage *stage, const struct pass *pass);
/* dx: [T or T/tp, H], the gradient of the output (unset where the stage has the head), then of the
 * input. */
MUST_USE enum status stage_backward_input(const struct stage *stage, const struct pass *pass,
                                          struct tensor dx);
MUST_USE enum status stage_backward_weight(const struct stage *stage, const struct pass *pass,
                                           struct layer_done done);
/* Both, layer by layer. */
MUST_USE enum status stage_backward(const struct stage *stage, const struct pass *pass, struct tensor dx,
                                    struct layer_done done);
