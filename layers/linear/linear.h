// SPDX-License-Identifier: Apache-2.0
/* Linear layers cut over tensor-parallel ranks (1909.08053), with sequence parallelism (2205.05198).
 *
 *   column: w[N/tp, K]  x whole  ->  y[T, N/tp], this rank's output features: no message is needed
 *   row:    w[N, K/tp]  x[T, K/tp]  ->  partial y[T, N]: their sum over tp is y
 *
 * A column layer feeds a row layer, so a pair costs one reduction forward and one backward. Under sequence
 * parallelism the reduction becomes a reduce-scatter that leaves each rank T/tp tokens, and the column
 * layer gathers them again: the same bytes, but norms and dropout work on T/tp tokens.
 *
 * The bias of a row layer is added after the reduction, by whoever adds the residual: adding it before would
 * count it tp times. */
#pragma once

#include "layers/linear/low_precision.h"

struct column_linear {
    int weight, bias; // rows; the first of the fused ones; bias -1: none
    struct quantization quantization;
    // SCRATCH [T, K], under sequence parallelism: x of all tokens; and, where messages are beside, the
    // ranks' parts of dx.
    struct region gathered;
    struct region partial;   // SCRATCH [T, K]: this rank's part of dx
    struct region scattered; // SCRATCH [T/tp, K]: dx of this rank's tokens, under sequence parallelism
};

struct row_linear {
    int weight, bias;
    struct quantization quantization;
    struct region partial;   // SCRATCH [T, N]: this rank's part of y
    struct region scattered; // SCRATCH [T/tp, N], under sequence parallelism
    struct region parts;     // SCRATCH [T, N], where messages are beside: the ranks' parts of y
    struct region dy;        // KEEP_INPUT_TO_WEIGHT [T or T/tp, N]: whoever has dy writes it here
    struct region gathered;  // KEEP_INPUT_TO_WEIGHT [T, N]: dy of all tokens, under sequence parallelism
};

struct column_linear column_linear_declare(const struct env *env, struct layout *layout, int weight,
                                           int bias);
struct row_linear row_linear_declare(const struct env *env, struct layout *layout, int weight, int bias);

/* x: [T or T/tp, K]; y: [T, N/tp], bias included; what comes behind it, of y's shape. */
MUST_USE enum status column_linear_forward(const struct column_linear *layer, const struct pass *pass,
                                           struct tensor x, struct tensor y, struct epilogue epilogue);
/* dy: [T, N/tp]. *dx: [T or T/tp, K], in scratch. */
MUST_USE enum status column_linear_backward_input(const struct column_linear *layer, const struct pass *pass,
                                                  struct tensor dy, struct tensor *dx);
/* x of all tokens, for backward_weight: gathered a second time rather than kept, since T/tp tokens per layer
 * and microbatch stay in memory then, not T. What is put on `compute` behind this call may run beside it. */
MUST_USE enum status column_linear_gather(const struct column_linear *layer, const struct pass *pass,
                                          struct tensor x, struct event *gathered);
MUST_USE enum status column_linear_backward_weight(const struct column_linear *layer, const struct pass *pass,
                                                   struct tensor x, struct event gathered, struct tensor dy);

/* x: [T, K/tp]. *y: [T or T/tp, N] without bias, in scratch. */
MUST_USE enum status row_linear_forward(const struct row_linear *layer, const struct pass *pass,
                                        struct tensor x, struct tensor *y);
/* The gradient of y lies in layer->dy. dx: [T, K/tp], and what comes behind it. */
MUST_USE enum status row_linear_backward_input(const struct row_linear *layer, const struct pass *pass,
                                               struct tensor dx, struct epilogue epilogue);
MUST_USE enum status row_linear_backward_weight(const struct row_linear *layer, const struct pass *pass,
                                                struct tensor x);

/* The bias [N] of a row layer; {0} when it has none. */
struct tensor row_linear_bias(const struct row_linear *layer, const struct pass *pass);
