// SPDX-License-Identifier: Apache-2.0
/* LayerNorm or RMSNorm over the hidden dimension of the local tokens, or over the channels of each head of q
 * or k (2010.04245, 2302.05442), where all heads share one weight: a rank then has a part of its gradient,
 * from its heads, of all tokens.
 *
 * Action I computes the weight gradient of its microbatch (two vectors) and keeps it, so that W can
 * accumulate in microbatch order without x and dy being kept until then. */
#pragma once

#include "layers/parameters/declare.h"
#include "layers/pass.h"

struct norm {
    int weight, bias;             // parameter indices; bias: -1 with RMSNorm
    struct region mean, rstd;     // KEEP_UNTIL_BACKWARD_INPUT f32[1, T or T/tp]; of heads: f32[heads, T]
    struct region dweight, dbias; // KEEP_INPUT_TO_WEIGHT f32[1, H]; of heads: f32[heads, D]
};

/* Declares its parameters: a weight, and a bias with LayerNorm. name: without ".weight". */
void norm_declare_params(struct declaration *d, enum param_role role, const char *name);

struct norm norm_declare(const struct layer_context *context, struct slot_layout *layout, int layer,
                         enum param_role role);

/* Return the op for the caller to enqueue, alone or fused with the residual op next to it. */
struct norm_forward norm_layer_forward(const struct norm *norm, const struct pass *pass, struct tensor x,
                                       struct tensor y);
/* dx = dresidual + gradient of x; dresidual as in the op. */
struct norm_backward norm_layer_backward_input(const struct norm *norm, const struct pass *pass,
                                               struct tensor dy, struct tensor x, struct tensor dresidual,
                                               struct tensor dx);

/* The norm of the heads of q or k. */
void norm_declare_head_params(struct declaration *d, enum param_role role, const char *name);
struct norm norm_declare_heads(const struct layer_context *context, struct slot_layout *layout, int layer,
                               enum param_role role, int64_t heads);
/* x, y: [T, heads D], columns of a wider matrix. */
MUST_USE enum status norm_heads_forward(const struct norm *norm, const struct pass *pass, struct tensor x,
                                        struct tensor y);
/* dx must not alias dy. */
MUST_USE enum status norm_heads_backward_input(const struct norm *norm, const struct pass *pass,
                                               struct tensor dy, struct tensor x, struct tensor dx);

/* Of both. */
MUST_USE enum status norm_layer_backward_weight(const struct norm *norm, const struct pass *pass);
