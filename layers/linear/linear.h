// SPDX-License-Identifier: Apache-2.0
/* Tensor-parallel linear layers (1909.08053), with sequence parallelism (2205.05198).
 *
 *   column: w[N/tp, K]  x replicated -> y[T, N/tp], this rank's output features, no communication
 *   row:    w[N, K/tp]  x[T, K/tp]   -> partial y[T, N]: y is the sum over tp
 *
 * A column-parallel layer feeds a row-parallel layer, so a pair costs one all-reduce forward and one
 * backward. Under sequence parallelism the all-reduce becomes a reduce-scatter that leaves T/tp tokens on
 * each rank, and an all-gather before the column-parallel layer: the same traffic, but norms and dropout
 * process T/tp tokens.
 *
 * A tp rank computes the whole gradient of its weight shard, so the sum is over data ranks only
 * (layers/parameters/gradients.h). Parameters that every tp rank holds in full may be partial (enum partial,
 * param.h): biases of row-parallel layers, norms, and key/value heads that ranks share.
 *
 * The bias of a row-parallel layer is added after the reduction, together with the residual: before it, it
 * would be added tp times. */
#pragma once

#include "layers/linear/low_precision.h"

struct column_linear {
    int weight, bias; // parameter indices: the first one of a fused matrix; bias: -1 without bias
    struct quantization quantization;
    // SCRATCH [T, K], under sequence parallelism: x of all tokens; with overlapped communication also the
    // ranks' partial dx.
    struct region gathered;
    struct region partial;   // SCRATCH [T, K]: this rank's partial dx
    struct region scattered; // SCRATCH [T/tp, K]: dx of the local tokens, under sequence parallelism
};

struct row_linear {
    int weight, bias;
    struct quantization quantization;
    struct region partial;   // SCRATCH [T, N]: this rank's partial y
    struct region scattered; // SCRATCH [T/tp, N], under sequence parallelism
    struct region parts;     // SCRATCH [T, N], with overlapped communication: the ranks' partial y
    struct region dy;        // KEEP_INPUT_TO_WEIGHT [T or T/tp, N]: the producer of dy writes it here
    struct region gathered;  // KEEP_INPUT_TO_WEIGHT [T, N]: dy of all tokens, under sequence parallelism
};

struct column_linear column_linear_declare(const struct layer_context *context, struct slot_layout *layout,
                                           int weight, int bias);
struct row_linear row_linear_declare(const struct layer_context *context, struct slot_layout *layout,
                                     int weight, int bias);

/* x: [T or T/tp, K]; y: [T, N/tp], including the bias; epilogue of y's shape. */
MUST_USE enum status column_linear_forward(const struct column_linear *layer, const struct pass *pass,
                                           struct tensor x, struct tensor y, struct epilogue epilogue);
/* dy: [T, N/tp]. *dx: [T or T/tp, K], in scratch memory. addend: the partial dx of another layer with the
 * same x, whose sum over tp is this one; {0}: none. */
MUST_USE enum status column_linear_backward_input(const struct column_linear *layer, const struct pass *pass,
                                                  struct tensor dy, struct tensor addend, struct tensor *dx);
/* *partial: [T, K], this rank's part of dx, in scratch memory. */
MUST_USE enum status column_linear_backward_input_partial(const struct column_linear *layer,
                                                          const struct pass *pass, struct tensor dy,
                                                          struct tensor *partial);
/* Gathers x of all tokens for backward_weight. A second all-gather, so that T/tp instead of T tokens per
 * layer and microbatch are kept in memory. It may run concurrently with later work on `compute`. */
MUST_USE enum status column_linear_gather(const struct column_linear *layer, const struct pass *pass,
                                          struct tensor x, struct event *gathered);
MUST_USE enum status column_linear_backward_weight(const struct column_linear *layer, const struct pass *pass,
                                                   struct tensor x, struct event gathered, struct tensor dy);

/* x: [T, K/tp]. *y: [T or T/tp, N] without bias, in scratch memory. addend: the partial y of another layer,
 * whose sum over tp is this one; {0}: none. */
MUST_USE enum status row_linear_forward(const struct row_linear *layer, const struct pass *pass,
                                        struct tensor x, struct tensor addend, struct tensor *y);
/* *partial: [T, N], this rank's part of y, in scratch memory. */
MUST_USE enum status row_linear_forward_partial(const struct row_linear *layer, const struct pass *pass,
                                                struct tensor x, struct tensor *partial);
/* Reads the gradient of y from layer->dy. dx: [T, K/tp], with its epilogue. */
MUST_USE enum status row_linear_backward_input(const struct row_linear *layer, const struct pass *pass,
                                               struct tensor dx, struct epilogue epilogue);
MUST_USE enum status row_linear_backward_weight(const struct row_linear *layer, const struct pass *pass,
                                                struct tensor x);

/* Returns the bias [N] of a row-parallel layer; {0} if it has none. */
struct tensor row_linear_bias(const struct row_linear *layer, const struct pass *pass);
