// SPDX-License-Identifier: Apache-2.0
/* One row of a residual op, for whoever goes on with it while it lies in the cache (norm.c). */
#pragma once

#include "kernels/cpu/memory_bound/dropout.h"

void residual_forward_row(const struct residual_forward *op, const struct dropout_rule *rule, int64_t t);
void residual_backward_row(const struct residual_backward *op, const struct dropout_rule *rule, int64_t t);

/* Nothing is dropped, and all lies where it goes. */
static inline bool residual_backward_is_done(const struct residual_backward *op)
{
    return op->dropout.probability == 0.0F && op->dx.data == op->dout.data;
}
