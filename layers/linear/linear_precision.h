// SPDX-License-Identifier: Apache-2.0
/* Precision of the matmuls of the transformer blocks: part of the model's mathematics, like model_config.h.
 * The embedding, the head and the attention core always compute in the working type. {0}: everything does. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum matmul { MATMUL_FORWARD, MATMUL_GRAD_INPUT, MATMUL_GRAD_WEIGHT, MATMUL_COUNT };

/* Operands of a linear layer's matmuls: its input, its weight, the gradient of its output. */
enum operand { OPERAND_X, OPERAND_W, OPERAND_DY, OPERAND_COUNT };

/* Defined in layers/linear/low_precision.h. */
enum matmul_format {
    MATMUL_FORMAT_NONE,
    MATMUL_E4M3,
    MATMUL_E5M2,
    MATMUL_HYBRID,
    MATMUL_MXFP8,
    MATMUL_NVFP4,
    MATMUL_TERNARY,
    MATMUL_FORMAT_COUNT
};

/* Source of the largest magnitude (amax) that determines a scale of e4m3, e5m2 or hybrid: the current tensor,
 * the tensor in previous steps, or a block. The other formats define their own scales. */
enum scaling { SCALING_TENSORWISE, SCALING_DELAYED, SCALING_BLOCKWISE };

/* Rounding of an mxfp8 scale to one of the two powers of two next to amax / (largest value of the format). */
enum scale_rounding { SCALE_ROUNDS_UP, SCALE_ROUNDS_DOWN };

struct linear_precision {
    enum matmul_format format[MATMUL_COUNT];
    enum scaling scaling;
    enum scale_rounding mxfp8_scale_rounding;
    int64_t num_layers, high_first, high_last; // this many layers at either end stay in high precision,
    char *const *high;                         // and layers with these names
    size_t high_count;
};

/* Returns true if any matmul of any layer may be quantized. */
bool linear_precision_quantizes(const struct linear_precision *precision);

/* Linear layers of a block: "attention.qkv", "attention.proj", "mlp.fc1" (also gate and up), "mlp.fc2". */
enum linear { LINEAR_QKV, LINEAR_PROJ, LINEAR_FC1, LINEAR_FC2, LINEARS_OF_LAYER };
extern const char *const linear_names[LINEARS_OF_LAYER];

/* Returns true if `name` selects the linear layer: "layers.3" (all of layer 3; -1: the last),
 * "layers.3.mlp.fc2", "mlp" or "mlp.fc2" (in every layer), "fc2". */
bool linear_is_named(const char *name, int64_t num_layers, int64_t layer, const char *linear);

/* Returns true if the linear layer stays in high precision. */
bool linear_is_high(const struct linear_precision *precision, int64_t layer, const char *linear);

/* Number of elements along the sum that share a scale: tensors must not be split within them. 1: anywhere. */
int64_t matmul_block(enum matmul_format format, enum scaling scaling);
