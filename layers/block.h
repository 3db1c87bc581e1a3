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
    unsigned recomputed;                    // the modules that are computed again
    struct region x;                        // [T or T/tp, H]: the input lands here
    struct region middle;                   // KEEP_UNTIL_BACKWARD_INPUT
    struct region normed1, normed2;         // KEEP_UNTIL_BACKWARD_WEIGHT
};

struct block block_declare(const struct env *env, struct layout *layout, int layer, struct region x);

/* From block->x to out, [T or T/tp, H]. */
MUST_USE enum status block_forward(const struct block *block, const struct pass *pass, struct tensor out);
/* Once more what was not kept, from what was. out: {0}, or where a whole layer's output is wanted too, for
 * the next one that is computed again. */
MUST_USE enum status block_forward_again(const struct block *block, const struct pass *pass,
                                         struct tensor out);
/* dx holds the gradient of out, and then the gradient of x. */
MUST_USE enum status block_backward_input(const struct block *block, const struct pass *pass,
                                          struct tensor dx);
MUST_USE enum status block_backward_weight(const struct block *block, const struct pass *pass);
