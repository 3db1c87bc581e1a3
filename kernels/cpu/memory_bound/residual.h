// SPDX-License-Identifier: Apache-2.0
/* One row of a residual op, for kernels that continue with the row while it is in cache (norm.c). */
#pragma once

#include "kernels/cpu/memory_bound/dropout.h"

void residual_forward_row(const struct residual_forward *op, const struct dropout_rule *rule, int64_t t);
void residual_backward_row(const struct residual_backward *op, const struct dropout_rule *rule, int64_t t);

/* No dropout, and in place: nothing to do. */
static inline bool residual_backward_is_done(const struct residual_backward *op)
{
    return op->dropout.probability == 0.0F && op->dx.data == op->dout.data;
}
