// SPDX-License-Identifier: Apache-2.0
/* The two ends of the model, cut over the vocabulary: the embedding, and the head with its loss.
 *
 * Each tp rank holds ceil(V/tp) rows. A token's embedding is on one rank and zero on the others, so the
 * sum over tp is exact. The loss never gathers the logits: maximum, sum of exponentials and the label's
 * logit are reduced, T numbers each (1909.08053). Losses are sums over tokens; the division by
 * the number of tokens of the global batch happens once, in the optimizer. */
#pragma once

#include "layers/linear/linear.h"
#include "layers/norm.h"

struct embedding {
    int table, position;    // rows; position -1 without learned positions
    struct philox site;     // of the dropout behind it
    struct region partial;  // SCRATCH [T, H]
    struct region dx;       // KEEP_INPUT_TO_WEIGHT [T or T/tp, H]
    struct region gathered; // KEEP_INPUT_TO_WEIGHT [T, H], under sequence parallelism
};

struct embedding embedding_declare(const struct env *env, struct layout *layout);

/* out: [T or T/tp, H]. */
MUST_USE enum status embedding_layer_forward(const struct embedding *embedding, const struct pass *pass,
                                             struct tensor out);
/* dx: the gradient of out. Nothing lies before the embedding: what W needs is kept. */
MUST_USE enum status embedding_layer_backward_input(const struct embedding *embedding,
                                                    const struct pass *pass, struct tensor dx);
MUST_USE enum status embedding_layer_backward_weight(const struct embedding *embedding,
                                                     const struct pass *pass);

struct head {
    struct norm norm;
    struct column_linear linear;
    int64_t begin, columns; // global index of this rank's first row, and how many exist
    struct region x;        // KEEP_UNTIL_BACKWARD_INPUT [T or T/tp, H]
    struct region normed;   // KEEP_UNTIL_BACKWARD_WEIGHT
    struct region logits;   // KEEP_UNTIL_BACKWARD_WEIGHT [T, ceil(V/tp)]: from I on, their gradient
    struct region max;      // KEEP_UNTIL_BACKWARD_INPUT f32[1, T]
    struct region sums;     // KEEP_UNTIL_BACKWARD_INPUT f32[2, T]: sum of exponentials; the label's logit
};

/* x_lifetime: KEEP_INPUT where the stage has nothing before its head, else KEEP_UNTIL_BACKWARD_INPUT. */
struct head head_declare(const struct env *env, struct layout *layout, enum lifetime x_lifetime);

/* From head->x to the sums of losses and tokens of each sequence, in pass->batch. */
MUST_USE enum status head_forward(const struct head *head, const struct pass *pass);
/* dx: [T or T/tp, H], overwritten. Here gradients begin, and get the loss scale. */
MUST_USE enum status head_backward_input(const struct head *head, const struct pass *pass, struct tensor dx);
MUST_USE enum status head_backward_weight(const struct head *head, const struct pass *pass);
