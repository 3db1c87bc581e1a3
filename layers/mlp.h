// SPDX-License-Identifier: Apache-2.0
/* The feed-forward branch: a column layer to F/tp features (two of them for SwiGLU, gate and up side by
 * side), the activation, a row layer back. */
#pragma once

#include "layers/linear/linear.h"

struct mlp {
    struct column_linear in;
    struct row_linear out;
    struct region before;  // KEEP_UNTIL_BACKWARD_INPUT [T, F/tp], or 2F/tp for SwiGLU
    struct region after;   // KEEP_UNTIL_BACKWARD_WEIGHT [T, F/tp]
    struct region dbefore; // KEEP_INPUT_TO_WEIGHT, the shape of before
    struct region dafter;  // SCRATCH [T, F/tp], for SwiGLU; else in dbefore's place
};

struct mlp mlp_declare(const struct env *env, struct layout *layout, int layer);

/* x: [T or T/tp, H]; *y likewise, in scratch, without the last bias. */
MUST_USE enum status mlp_forward(const struct mlp *mlp, const struct pass *pass, struct tensor x,
                                 struct tensor *y);
/* Its two halves. The first, up to the last matrix, makes all that the backward pass needs. */
MUST_USE enum status mlp_forward_features(const struct mlp *mlp, const struct pass *pass, struct tensor x);
MUST_USE enum status mlp_forward_out(const struct mlp *mlp, const struct pass *pass, struct tensor *y);
/* The activation alone, from what went into it. */
MUST_USE enum status mlp_activate(const struct mlp *mlp, const struct pass *pass);
/* The gradient of y lies in mlp->out.dy. */
MUST_USE enum status mlp_backward_input(const struct mlp *mlp, const struct pass *pass, struct tensor *dx);
MUST_USE enum status mlp_backward_weight(const struct mlp *mlp, const struct pass *pass, struct tensor x);
