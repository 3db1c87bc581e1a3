// SPDX-License-Identifier: Apache-2.0
/* Attention in bf16 and f16 against S x S matrices in double precision, for tests of the tensor-core kernels.
 * Terms of a bound:
 *
 * - u: one rounding to bf16 or f16, 2^-8 or 2^-11 relative: of weights and their gradients, which tensor
 *   cores take in the operand type, and of results
 * - TINY: the same for f16 subnormals, absolute: 2^-25
 * - rest: all fp32 arithmetic; so far below u that a simple bound suffices */
#pragma once

#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"

struct attention_shape {
    int64_t batch, sequence, heads, groups, head_dim;
    int documents; // length of each, 0: none
    float dropout;
    struct attention_variant variant;
};

struct attention_trial {
    struct fixture fixture;
    struct attention_shape shape;
    enum dtype dtype;
    bool rounds_heads;                  // rounds each head's dk and dv before adding those of a group:
                                        // cuDNN's
    int64_t tokens, width, group_width; // A*D, G*D
    struct attention_backward op;       // including forward
    struct reference_attention reference;
    double *dout, *weights, *lse, *out, *dq, *dk, *dv; // of the reference
};

/* Random operands and the reference's results; fixture_close() frees them. */
struct attention_trial attention_trial_of(struct attention_shape shape, enum dtype dtype);

/* Normally distributed, or NaN without a name. */
struct tensor attention_trial_matrix(struct attention_trial *c, const char *name, int64_t rows,
                                     int64_t columns);

/* The forward pass. */
void attention_trial_forward(struct attention_trial *c);
/* The backward pass reads the reference's out and lse, rounded, which excludes forward's errors. */
void attention_trial_backward(struct attention_trial *c);

/* Counts the elements of out and lse, or of dq, dk and dv, outside their bounds. With SHOW_WORST in the
 * environment it prints the largest error as a fraction of its bound. */
int64_t attention_forward_outside(struct attention_trial *c);
int64_t attention_backward_outside(struct attention_trial *c);
