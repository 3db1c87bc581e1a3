// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdbool.h>

/* Activation functions; with a gate, x has twice the columns of y (2002.05202):
 *
 *     gelu          x/2 (1 + erf(x/sqrt 2))           swiglu      silu(x[:, :F]) * x[:, F:]
 *     gelu_tanh     its tanh approximation (GPT-2)    geglu       gelu(x[:, :F]) * x[:, F:]
 *     squared_relu  max(x, 0)^2 (2109.08668)          geglu_tanh  gelu_tanh(x[:, :F]) * x[:, F:] */
#define ACTIVATIONS(row) /* kind, with a gate */                                                       \
    row(GELU, false) row(GELU_TANH, false) row(SQUARED_RELU, false) row(SWIGLU, true) row(GEGLU, true) \
        row(GEGLU_TANH, true)

enum activation {
#define ACTIVATION_ROW(kind, gated) ACTIVATION_##kind,
    ACTIVATIONS(ACTIVATION_ROW)
#undef ACTIVATION_ROW
};

#define ACTIVATION_ROW(kind, gated) +1
enum { ACTIVATION_KINDS = 0 ACTIVATIONS(ACTIVATION_ROW) };
#undef ACTIVATION_ROW

#define ACTIVATION_ROW(kind, gated) | (gated ? 1U << ACTIVATION_##kind : 0U)
enum { ACTIVATION_GATES = 0U ACTIVATIONS(ACTIVATION_ROW) }; // a bit for each kind with a gate
#undef ACTIVATION_ROW
#define ACTIVATION_HAS_GATE(kind) ((ACTIVATION_GATES >> (kind)&1) != 0) // also a constant of CUDA templates
static inline bool activation_is_gated(enum activation kind)
{
    return ACTIVATION_HAS_GATE(kind);
}
