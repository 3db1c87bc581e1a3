// SPDX-License-Identifier: Apache-2.0
/* The end of a residual branch: out = residual + dropout(branch + bias of the branch's last layer). Branches
 * and the residual stream have the local tokens of this rank: all T, or T/tp under sequence parallelism. */
#pragma once

#include "layers/linear/linear.h"

/* Random stream of the hidden dropout after a branch ("attention" or "mlp") of a layer. */
struct philox branch_site(const struct layer_context *context, int layer, const char *branch);

struct residual_forward branch_forward(const struct pass *pass, const struct row_linear *last,
                                       struct philox site, struct tensor branch, struct tensor residual,
                                       struct tensor out);
/* The gradient of the last layer: dout through the dropout mask, into last->dy. */
struct residual_backward branch_backward(const struct pass *pass, const struct row_linear *last,
                                         struct philox site, struct tensor dout);
