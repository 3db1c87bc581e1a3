// SPDX-License-Identifier: Apache-2.0
/* Feed-forward branch: a column-parallel layer to F/tp features (2F/tp with a gate: gate and up in one
 * matrix), the activation function, and a row-parallel layer. */
#pragma once

#include "layers/linear/linear.h"
#include "layers/parameters/declare.h"

struct mlp {
    struct column_linear in;
    struct row_linear out;
    // Input and output of the activation function, and their gradients.
    struct region before;  // KEEP_UNTIL_BACKWARD_INPUT [T, F/tp], or 2F/tp with a gate
    struct region after;   // KEEP_UNTIL_BACKWARD_WEIGHT [T, F/tp]
    struct region dbefore; // KEEP_INPUT_TO_WEIGHT, same shape as before
    struct region dafter;  // SCRATCH [T, F/tp] with a gate; otherwise dbefore is used
};

void mlp_declare_params(struct declaration *d);
struct mlp mlp_declare(const struct layer_context *context, struct slot_layout *layout, int layer);

/* The forward pass in two halves: the first computes every activation that the backward pass reads, and the
 * second is the last matmul. x and *y: [T or T/tp, H]. *y is in scratch memory and excludes the bias of the
 * second layer. addend: as for row_linear_forward(). */
MUST_USE enum status mlp_forward_features(const struct mlp *mlp, const struct pass *pass, struct tensor x);
MUST_USE enum status mlp_forward_out(const struct mlp *mlp, const struct pass *pass, struct tensor addend,
                                     struct tensor *y);
/* Computes `after` from `before`. */
MUST_USE enum status mlp_activate(const struct mlp *mlp, const struct pass *pass);
/* Reads the gradient of y from mlp->out.dy. Writes *dx. */
MUST_USE enum status mlp_backward_input(const struct mlp *mlp, const struct pass *pass, struct tensor *dx);
/* *partial: [T, H], of which dx is the sum over tp, in scratch memory. */
MUST_USE enum status mlp_backward_input_partial(const struct mlp *mlp, const struct pass *pass,
                                                struct tensor *partial);
MUST_USE enum status mlp_backward_weight(const struct mlp *mlp, const struct pass *pass, struct tensor x);
