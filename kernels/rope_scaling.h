// SPDX-License-Identifier: Apache-2.0
/* The ways to scale frequencies of rotary position embeddings (formulas: kernels/position_embedding.h). */
#pragma once

enum rope_scaling_kind { ROPE_UNSCALED, ROPE_LINEAR, ROPE_NTK, ROPE_LLAMA3, ROPE_YARN };

struct rope_scaling {
    enum rope_scaling_kind kind; // ROPE_UNSCALED: the other fields are not read
    double factor;               // >= 1
    double low, high;            // ROPE_LLAMA3, ROPE_YARN: low < high
    double original;             // ROPE_LLAMA3, ROPE_YARN: the context length of the original model
};
