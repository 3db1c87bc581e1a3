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

MISSING(cpu_attention_forward, attention_forward)
MISSING(cpu_attention_backward, attention_backward)
