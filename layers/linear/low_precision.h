// SPDX-License-Identifier: Apache-2.0
/* Low precision inside a linear layer. Its three matrix multiplications,
 *
 *     forward      y  = x  w^T     sums over the inputs K
 *     grad_input   dx = dy w       sums over the outputs N
 *     grad_weight  dw = dy^T x     sums over the tokens T
 *
 * may each see their operands in a small number format. That is simulated: an operand is rounded to what the
 * format and its scales can hold (quantize, kernels/ops.h), and the floats that stand for it are multiplied
 * in fp32. A product of two such floats is exact; what differs from hardware is the order of additions only,
 * and where a scale is no power of two (nvfp4's tensor scale, ternary), a rounding to fp32 of 2^-24.
 *
 *                x                w                  dy               blocks of, along the sum x across
 *     e4m3       E4M3             E4M3               E4M3             a tensor, or 128 x 1 (w: 128 x 128)
 *     e5m2       E5M2             E5M2               E5M2             the same
 *     hybrid     E4M3             E4M3               E5M2             the same
 *     mxfp8      E4M3             E4M3               E4M3             32 x 1, scales E8M0, rounded up or down
 *     nvfp4      E2M1             E2M1, 16 x 16      E2M1 stochastic  16 x 1, scales E4M3 and of the tensor
 *     ternary    int8, a token    -1 0 1, a tensor   as it is
 *
 * mxfp8 is OCP Microscaling 1.0, which rounds its scales down; 2506.08027 rounds them up.
 * 128 x 1 is DeepSeek-V3's (2412.19437), nvfp4 is 2509.25149's, with a random Hadamard transform of blocks of
 * 16 tokens on both operands of grad_weight; ternary is BitNet b1.58's (2402.17764), whose gradients pass
 * through the rounding. Every operand is rounded from what the layer has, for each direction anew.
 *
 * Over bf16 and f16 the rounded operands are fp32 all the same, which holds what every format and scale make
 * of them; the product is fp32 and is rounded once to the working type, with its bias.
 *
 * With delayed scaling (amax_history.h) a tensor's scale is that of the steps before, and what of it
 * is larger than the format then holds saturates.
 *
 * No layout may show in a scale. So a tensor is a logical one (q, k and v apart, of all tp ranks, for x and
 * dy of one microbatch), blocks begin anew with each logical tensor and with each sequence, and tp cuts
 * tensors between blocks only: the recipe sees to that. Stochastic rounding is keyed by the tensor's name,
 * the global sample and the element.
 *
 * The trap: sums over tp ranks round differently from one rank's, and a rounding to three bits can turn the
 * last bit of a float into a sixteenth of it. Layouts agree to the bit over pp, dp and schedules, not over
 * tp. */
#pragma once

#include "layers/pass.h"

enum { QUANTIZED_PARTS = 3 }; // q, k and v

/* What one linear layer has for it. */
struct quantization {
    struct linear_precision precision; // none in a layer that is kept in high precision
    int weight;                        // row, the first of the fused ones
    bool cut_inputs;                   // tp cuts K, not N
    struct region x, w, dy;            // SCRATCH, the copies: f32[T, K], [N, K], [T, N] of this rank
    struct region magnitudes;          // SCRATCH
    struct region product, bias;       // SCRATCH, where activations are not f32: f32[T, K or N], [1, N]
    struct philox signs;               // of the Hadamard transform: one for the whole run
    struct philox dither[QUANTIZED_PARTS][PRODUCT_COUNT];
};

/* cut_dim: which dimension of the weight tp cuts. */
struct quantization quantization_declare(const struct env *env, struct layout *layout, int weight,
                                         int cut_dim);

/* The operands of a product, in the order in which it has them above. */
struct operands {
    struct tensor first, second;
};

/* Replaces the operands by their lowered copies, f32, where the product is lowered. The copies last until the
 * next call for this layer. */
MUST_USE enum status quantize_operand(const struct quantization *quantization, const struct pass *pass,
                                      enum product product, struct operands *operands);
