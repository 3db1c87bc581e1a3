// SPDX-License-Identifier: Apache-2.0
/* Vocabulary-parallel layers: the embedding, and the head with its loss.
 *
 * Each tp rank holds ceil(V/tp) rows. A token's embedding is on one rank and zero on the others, so the sum
 * over tp is exact. The logits are never gathered: the maximum, the sum of exponentials and the label's logit
 * are all-reduced, T elements each (1909.08053). Losses are sums over tokens; the optimizer divides once by
 * the number of tokens of the global batch. */
#pragma once

#include "layers/linear/linear.h"
#include "layers/norm.h"

struct embedding {
    int table, position;    // parameter indices; position: -1 without learned positions
    struct philox site;     // random stream of the dropout after the embedding
    struct region partial;  // SCRATCH [T, H]
    struct region dx;       // KEEP_INPUT_TO_WEIGHT [T or T/tp, H]
    struct region gathered; // KEEP_INPUT_TO_WEIGHT [T, H], under sequence parallelism
};

struct embedding embedding_declare(const struct env *env, struct layout *layout);

/* out: [T or T/tp, H]. */
MUST_USE enum status embedding_layer_forward(const struct embedding *embedding, const struct pass *pass,
                                             struct tensor out);
/* dx: gradient of out. The embedding has no input gradient; the tensors read by W are kept. */
MUST_USE enum status embedding_layer_backward_input(const struct embedding *embedding,
                                                    const struct pass *pass, struct tensor dx);
MUST_USE enum status embedding_layer_backward_weight(const struct embedding *embedding,
                                                     const struct pass *pass);

struct head {
    struct norm norm;
    struct column_linear linear;
    int64_t begin, columns; // global index of this rank's first vocabulary row, and number of rows without
                            // padding
    struct region x;        // KEEP_UNTIL_BACKWARD_INPUT [T or T/tp, H]
    struct region normed;   // KEEP_UNTIL_BACKWARD_WEIGHT
    struct region logits;   // KEEP_UNTIL_BACKWARD_WEIGHT [T, ceil(V/tp)]: logits, overwritten by I with their
                            // gradient
    struct region max;      // KEEP_UNTIL_BACKWARD_INPUT f32[1, T]
    struct region sums;     // KEEP_UNTIL_BACKWARD_INPUT f32[2, T]: sum of exponentials; label's logit
};

/* x_lifetime: KEEP_INPUT if the stage consists of the head only, else KEEP_UNTIL_BACKWARD_INPUT. */
struct head head_declare(const struct env *env, struct layout *layout, enum lifetime x_lifetime);

/* From head->x to the sums of losses and tokens of each sequence, in pass->batch. */
MUST_USE enum status head_forward(const struct head *head, const struct pass *pass);
/* dx: [T or T/tp, H], overwritten. Applies the loss scale: this is the first gradient of the backward pass.
 * */
MUST_USE enum status head_backward_input(const struct head *head, const struct pass *pass, struct tensor dx);
MUST_USE enum status head_backward_weight(const struct head *head, const struct pass *pass);
