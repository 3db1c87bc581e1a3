// SPDX-License-Identifier: Apache-2.0
#include "layers/branch.h"

#include <stdio.h>

struct philox branch_site(const struct layer_context *context, int layer, const char *branch)
{
    char name[PARAM_NAME_CHARS];
    snprintf(name, sizeof name, "layers.%d.%s.dropout", layer, branch);
    return philox_named(context->seed, name);
}

struct residual_forward branch_forward(const struct pass *pass, const struct row_linear *last,
                                       struct philox site, struct tensor branch, struct tensor residual,
                                       struct tensor out)
{
    return (struct residual_forward){
        .x = branch,
        .bias = row_linear_bias(last, pass),
        .residual = residual,
        .out = out,
        .dropout = pass_hidden_dropout(pass, site),
    };
}

struct residual_backward branch_backward(const struct pass *pass, const struct row_linear *last,
                                         struct philox site, struct tensor dout)
{
    return (struct residual_backward){
        .dout = dout,
        .dx = pass_tensor(pass, last->dy),
        .dropout = pass_hidden_dropout(pass, site),
    };
}
