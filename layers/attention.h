// SPDX-License-Identifier: Apache-2.0
/* Attention branch: a column-parallel fused QKV projection, the norms of q and k (with qk_layernorm), rotary
 * embedding (with RoPE), blockwise causal attention and a row-parallel output projection. Each tp rank holds
 * whole heads, so the softmax needs no communication. With fewer key/value heads than tp ranks, neighbouring
 * ranks hold replicas of them. */
#pragma once

#include "layers/linear/linear.h"
#include "layers/norm.h"
#include "layers/parameters/declare.h"

struct attention {
    int layer; // of the model
    struct column_linear qkv;
    struct row_linear proj;
    bool norms; // qk_layernorm
    struct norm q_norm, k_norm;
    int64_t heads, groups; // on this rank
    int64_t window;        // of this layer; 0: none
    struct philox site;    // random stream of the attention dropout
    struct region fused;   // KEEP_UNTIL_BACKWARD_INPUT [T, (A + 2G)D / tp]: q, k, v; without `norms` after
                           // rotation
    struct region normed;  // with `norms`: KEEP_UNTIL_BACKWARD_INPUT [T, (A + G)D / tp]: q, k after rotation
    struct region dnormed; // with `norms`: SCRATCH, same shape as normed
    struct region lse;     // KEEP_UNTIL_BACKWARD_INPUT f32[A/tp, T]
    struct region out;     // KEEP_UNTIL_BACKWARD_WEIGHT [T, AD/tp]
    struct region dfused;  // KEEP_INPUT_TO_WEIGHT, same shape as fused
    struct region dout;    // SCRATCH, same shape as out
};

void attention_declare_params(struct declaration *d);
struct attention attention_declare(const struct layer_context *context, struct slot_layout *layout,
                                   int layer);

/* x and *y: [T or T/tp, H]. *y is in scratch memory and excludes the projection bias. */
MUST_USE enum status attention_layer_forward(const struct attention *attention, const struct pass *pass,
                                             struct tensor x, struct tensor *y);
/* The two halves of attention_layer_forward(). The first stops before the projection. */
MUST_USE enum status attention_forward_features(const struct attention *attention, const struct pass *pass,
                                                struct tensor x);
MUST_USE enum status attention_forward_out(const struct attention *attention, const struct pass *pass,
                                           struct tensor *y);
/* *partial: [T, H], of which y is the sum over tp, in scratch memory. */
MUST_USE enum status attention_forward_partial(const struct attention *attention, const struct pass *pass,
                                               struct tensor *partial);
/* Recomputes the attention core from q, k and v (RECOMPUTE_CORE_ATTENTION). */
MUST_USE enum status attention_core_recompute(const struct attention *attention, const struct pass *pass);
/* Reads the gradient of y from attention->proj.dy. Writes *dx, which includes the sum over tp of `addend`,
 * [T, H] or {0}. */
MUST_USE enum status attention_layer_backward_input(const struct attention *attention,
                                                    const struct pass *pass, struct tensor addend,
                                                    struct tensor *dx);
MUST_USE enum status attention_layer_backward_weight(const struct attention *attention,
                                                     const struct pass *pass, struct tensor x);
