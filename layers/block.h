// SPDX-License-Identifier: Apache-2.0
/* One pre-norm transformer block (GPT-2, Llama):
 *
 *   x ──norm1──attention──dropout──(+)── middle ──norm2──mlp──dropout──(+)── out
 *    └──────────────────────────────┘        └───────────────────────────┘
 *
 * The residual stream, the norms and the hidden dropout process the local tokens of this rank: all T, or T/tp
 * under sequence parallelism. */
#pragma once

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/norm.h"

struct block {
    int layer;
    struct norm norm1, norm2;
    struct attention attention;
    struct mlp mlp;
    struct philox attention_site, mlp_site; // random streams of the hidden dropout after each branch
    unsigned recomputed;                    // recomputed modules (enum recompute_module)
    struct region x;                        // [T or T/tp, H]: the input
    struct region middle;                   // KEEP_UNTIL_BACKWARD_INPUT
    struct region normed1, normed2;         // KEEP_UNTIL_BACKWARD_WEIGHT
};

struct block block_declare(const struct env *env, struct layout *layout, int layer, struct region x);

/* Forward pass from block->x to out, [T or T/tp, H]. */
MUST_USE enum status block_forward(const struct block *block, const struct pass *pass, struct tensor out);
/* Recomputes the dropped activations from the kept ones. out: {0}, or the destination of the block's output
 * when the next layer of a recomputed run needs it. */
MUST_USE enum status block_forward_again(const struct block *block, const struct pass *pass,
                                         struct tensor out);
/* dx: gradient of out on entry, gradient of x on return. */
MUST_USE enum status block_backward_input(const struct block *block, const struct pass *pass,
                                          struct tensor dx);
MUST_USE enum status block_backward_weight(const struct block *block, const struct pass *pass);
