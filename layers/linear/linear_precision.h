// SPDX-License-Identifier: Apache-2.0
/* Which numbers the matrix multiplications of the blocks compute with: mathematics, like model_config.h.
 * The embedding, the head and the attention core always compute in the working type. {0}: everything does. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum product { PRODUCT_FORWARD, PRODUCT_GRAD_INPUT, PRODUCT_GRAD_WEIGHT, PRODUCT_COUNT };

/* The operands of a linear layer's products: its input, its weight, the gradient of its output. */
enum operand { OPERAND_X, OPERAND_W, OPERAND_DY, OPERAND_COUNT };

/* layers/linear/low_precision.h says what each is. */
enum product_format {
    PRODUCT_AS_IT_IS,
    PRODUCT_E4M3,
    PRODUCT_E5M2,
    PRODUCT_HYBRID,
    PRODUCT_MXFP8,
    PRODUCT_NVFP4,
    PRODUCT_TERNARY,
    PRODUCT_FORMAT_COUNT
};

/* Whose largest magnitude a scale of e4m3, e5m2 or hybrid follows: the tensor's as it is, as it was in the
 * steps before, or a block's. The others bring their own. */
enum scaling { SCALING_TENSORWISE, SCALING_DELAYED, SCALING_BLOCKWISE };

/* Which of the two powers of two next to (largest magnitude) / (largest number) an mxfp8 scale is. */
enum scale_rounding { SCALE_ROUNDS_UP, SCALE_ROUNDS_DOWN };

struct linear_precision {
    enum product_format format[PRODUCT_COUNT];
    enum scaling scaling;
    enum scale_rounding mxfp8_scale_rounding;
    int64_t num_layers, high_first, high_last; // so many layers at either end stay as they are,
    char *const *high;                         // and those with these names
    size_t high_count;
};

/* Whether any product of any layer may be lowered. */
bool linear_precision_quantizes(const struct linear_precision *precision);

/* The linear layers of a block: "attention.qkv", "attention.proj", "mlp.fc1" (gate and up, too), "mlp.fc2".
 */
enum { LINEARS_OF_LAYER = 4 };
extern const char *const linear_names[LINEARS_OF_LAYER];

/* Whether `name` means the linear layer: "layers.3" (its whole layer; -1: the last), "layers.3.mlp.fc2",
 * "mlp" or "mlp.fc2" (in every layer), "fc2". */
bool linear_is_named(const char *name, int64_t num_layers, int64_t layer, const char *linear);

/* Whether it is kept in high precision. */
bool linear_is_high(const struct linear_precision *precision, int64_t layer, const char *linear);

/* The elements along its sum that share a scale in this format: a tensor must not be cut inside. 1: any cut.
 */
int64_t product_block(enum product_format format, enum scaling scaling);
