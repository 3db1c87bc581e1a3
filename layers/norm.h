// SPDX-License-Identifier: Apache-2.0
/* LayerNorm or RMSNorm over the hidden dimension of the tokens this rank holds.
 *
 * I already has all that the weight's gradient needs, and keeps this microbatch's share of it (two
 * vectors), so that W can add the shares in microbatch order without keeping x and dy until then. */
#pragma once

#include "layers/pass.h"

struct norm {
    int weight, bias;             // rows; bias -1 for RMSNorm
    struct region mean, rstd;     // KEEP_UNTIL_BACKWARD_INPUT f32[1, T or T/tp]
    struct region dweight, dbias; // KEEP_INPUT_TO_WEIGHT f32[1, H]
};

/* `name` is the row's, without ".weight": "layers.0.norm1". */
struct norm norm_declare(const struct env *env, struct layout *layout, const char *name);

/* The ops, for the caller to put on the stream: alone, or as a pair with the residual op beside it. */
struct norm_forward norm_layer_forward(const struct norm *norm, const struct pass *pass, struct tensor x,
                                       struct tensor y);
/* dx = dresidual + the gradient for x; dresidual as in the op. */
struct norm_backward norm_layer_backward_input(const struct norm *norm, const struct pass *pass,
                                               struct tensor dy, struct tensor x, struct tensor dresidual,
                                               struct tensor dx);
MUST_USE enum status norm_layer_backward_weight(const struct norm *norm, const struct pass *pass);
