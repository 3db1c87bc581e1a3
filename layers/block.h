// SPDX-License-Identifier: Apache-2.0
/* One transformer block, normalising first (GPT-2, Llama):
 *
 *   x ──norm1──attention──dropout──(+)── middle ──norm2──mlp──dropout──(+)── out
 *    └──────────────────────────────┘        └───────────────────────────┘
 *
 * The residual stream, the norms and the hidden dropout live on the tokens this rank holds between matrix
 * multiplications: all T, or T/tp under sequence parallelism. */
#pragma once

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/norm.h"

struct block {
    int layer;
    struct norm norm1, norm2;
    struct attention attention;
    struct mlp mlp;
    struct philox attention_site, mlp_site; // of the hidden dropout behind each branch
    struct region x;                        // f32[T or T/tp, H]: the input lands here
    struct region middle;                   // HOME_UNTIL_INPUT
    struct region normed1, normed2;         // HOME_UNTIL_WEIGHT
};

/* x_home: HOME_INPUT for the first block of a stage, else HOME_UNTIL_INPUT. */
struct block block_declare(const struct env *env, struct layout *layout, int layer, enum home x_home);

/* From block->x to out, f32[T or T/tp, H]. */
MUST_USE enum status block_forward(const struct block *block, const struct pass *pass, struct tensor out);
/* dx holds the gradient of out, and then the gradient of x. */
MUST_USE enum status block_backward_input(const struct block *block, const struct pass *pass,
                                          struct tensor dx);
MUST_USE enum status block_backward_weight(const struct block *block, const struct pass *pass);
