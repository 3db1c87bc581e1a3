// SPDX-License-Identifier: Apache-2.0
/* Kernels that are not written yet. Remove a line when the real one lands. */
#include "kernels/cpu/cpu.h"

#define MISSING(function, argument)                                 \
    void function(struct device *device, const struct argument *op) \
    {                                                               \
        (void)device;                                               \
        (void)op;                                                   \
        die(__FILE__, __LINE__, #function, "is not written yet");   \
    }

MISSING(cpu_column_sum, column_sum)
MISSING(cpu_norm_forward, norm_forward)
MISSING(cpu_norm_backward, norm_backward)
MISSING(cpu_activation_forward, activation_forward)
MISSING(cpu_activation_backward, activation_backward)
MISSING(cpu_rope, rope)
MISSING(cpu_attention_forward, attention_forward)
MISSING(cpu_attention_backward, attention_backward)
MISSING(cpu_embedding_forward, embedding_forward)
MISSING(cpu_embedding_backward, embedding_backward)
MISSING(cpu_residual_forward, residual_forward)
MISSING(cpu_residual_backward, residual_backward)
MISSING(cpu_loss_max, loss_max)
MISSING(cpu_loss_sum, loss_sum)
MISSING(cpu_loss_finish, loss_finish)
MISSING(cpu_loss_backward, loss_backward)
MISSING(cpu_squares, squares)
MISSING(cpu_adamw, adamw)
