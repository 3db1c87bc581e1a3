// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdbool.h>

/* Activation functions; with a gate, x has twice the columns of y (2002.05202):
 *
 *     gelu          x/2 (1 + erf(x/sqrt 2))           swiglu      silu(x[:, :F]) * x[:, F:]
 *     gelu_tanh     its tanh approximation (GPT-2)    geglu       gelu(x[:, :F]) * x[:, F:]
 *     squared_relu  max(x, 0)^2 (2109.08668)          geglu_tanh  gelu_tanh(x[:, :F]) * x[:, F:] */
#define ACTIVATIONS(row) row(GELU) row(GELU_TANH) row(SQUARED_RELU) row(SWIGLU) row(GEGLU) row(GEGLU_TANH)
enum activation {
#define ACTIVATION_ROW(kind) ACTIVATION_##kind,
    ACTIVATIONS(ACTIVATION_ROW)
#undef ACTIVATION_ROW
        ACTIVATION_GATED = ACTIVATION_SWIGLU // the first one with a gate
};
enum { ACTIVATION_KINDS = ACTIVATION_GEGLU_TANH + 1 };
static inline bool activation_is_gated(enum activation kind)
{
    return kind >= ACTIVATION_GATED;
}
