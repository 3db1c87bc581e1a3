// SPDX-License-Identifier: Apache-2.0
/* The attention branch: a column layer to this rank's heads (q, k and v in one matrix), rotary positions
 * where the model has them, blockwise causal attention, a row layer back. Each tp rank has whole heads, so
 * the softmax needs no message. With fewer key/value heads than ranks, neighbours hold the same ones. */
#pragma once

#include "layers/linear/linear.h"

struct attention {
    struct column_linear qkv;
    struct row_linear proj;
    int64_t heads, groups; // of this rank
    struct philox site;    // of the attention dropout
    struct region fused;   // KEEP_UNTIL_BACKWARD_INPUT [T, (A + 2G)D / tp]: q, k, v after rotation
    struct region lse;     // KEEP_UNTIL_BACKWARD_INPUT f32[A/tp, T]
    struct region out;     // KEEP_UNTIL_BACKWARD_WEIGHT [T, AD/tp]
    struct region dfused;  // KEEP_INPUT_TO_WEIGHT, the shape of fused
    struct region dout;    // SCRATCH, the shape of out
};

struct attention attention_declare(const struct env *env, struct layout *layout, int layer);

/* x: [T or T/tp, H]; *y likewise, in scratch, without the last bias. */
MUST_USE enum status attention_layer_forward(const struct attention *attention, const struct pass *pass,
                                             struct tensor x, struct tensor *y);
/* The attention itself once more, from q, k and v (RECOMPUTE_CORE_ATTENTION). */
MUST_USE enum status attention_core_again(const struct attention *attention, const struct pass *pass);
/* The gradient of y lies in attention->proj.dy. */
MUST_USE enum status attention_layer_backward_input(const struct attention *attention,
                                                    const struct pass *pass, struct tensor *dx);
MUST_USE enum status attention_layer_backward_weight(const struct attention *attention,
                                                     const struct pass *pass, struct tensor x);
