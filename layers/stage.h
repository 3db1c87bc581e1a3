// SPDX-License-Identifier: Apache-2.0
/* A pipeline stage: consecutive layers of the model (layers/model.h). A rank has one stage per chunk. A stage
 * may have no layers: its output is then its input.
 *
 *   x received into stage_input  ──> forward ──> stage_output is sent   (slots of the microbatch)
 *   dx in a gradient buffer ──> backward_input, in place ──> is sent
 *
 * Pipeline schedules use three actions: F, I, W; and B = I and W layer by layer. */
#pragma once

#include "layers/model.h"

/* Layers [first, first + count) of the model, numbered as in struct param. */
struct stage_span {
    int first, count;
};

/* The span of one of `stages` stages. first_block[stages + 1]: the first block of each. The first stage
 * starts with the embedding, and the last one ends with the head. */
static inline struct stage_span stage_span_of(const int *first_block, int stages, int stage)
{
    int first = stage == 0 ? LAYER_EMBEDDING : first_block[stage];
    int end = first_block[stage + 1] + (stage == stages - 1 ? 1 : 0);
    return (struct stage_span){.first = first, .count = end - first};
}

struct stage_layer {
    const struct layer_kind *kind;
    int layer;                // in the model
    struct region x;          // its input, if the kind has one
    void *forward, *backward; // its declarations for F and for the backward pass: different where activations
                              // are recomputed
    int recompute_from; // layers [recompute_from, this one] of the stage are recomputed before this layer's
                        // backward pass; -1: none
};

struct stage {
    const struct layer_context *context;
    struct stage_layer *layers; // [count]
    int count;
    bool has_input, has_output; // false if the stage begins with an embedding; if it ends with a head
    struct region output;       // KEEP_UNTIL_BACKWARD_INPUT [T or T/tp, H]: the output, if there is one
    struct slot_layout layout;  // size of one slot of each lifetime
};

MUST_USE enum status stage_create(const struct layer_context *context, struct stage_span span,
                                  struct stage *out);
void stage_destroy(struct stage *stage);

/* Input and output of this stage in the slots of `pass`; {0} without. */
struct tensor stage_input(const struct stage *stage, const struct pass *pass);
struct tensor stage_output(const struct stage *stage, const struct pass *pass);
/* Logits of the last forward pass; {0} if no layer of the stage computes them. */
struct tensor stage_logits(const struct stage *stage, const struct pass *pass);

MUST_USE enum status stage_forward(const struct stage *stage, const struct pass *pass);
/* dx: [T or T/tp, H], gradient of the output on entry (ignored without output), gradient of the
 * input on return. */
MUST_USE enum status stage_backward_input(const struct stage *stage, const struct pass *pass,
                                          struct tensor dx);
/* Accumulates gradients through layers/parameters/gradients.h. */
MUST_USE enum status stage_backward_weight(const struct stage *stage, const struct pass *pass);
/* backward_input and backward_weight, layer by layer. */
MUST_USE enum status stage_backward(const struct stage *stage, const struct pass *pass, struct tensor dx);

/* Marks the gradients of all layers as ready to be reduced, in the order of a backward pass: for a stage
 * without microbatches, and after the replay of a CUDA graph. */
MUST_USE enum status stage_mark_gradients_ready(const struct stage *stage);
