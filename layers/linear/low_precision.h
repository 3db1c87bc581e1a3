// SPDX-License-Identifier: Apache-2.0
/* Low-precision matmuls of a linear layer. Its three matmuls,
 *
 *     forward      y  = x  w^T     sums over the inputs K
 *     grad_input   dx = dy w       sums over the outputs N
 *     grad_weight  dw = dy^T x     sums over the tokens T
 *
 * may each use operands in a low-precision format. The format is simulated: an operand is rounded to the
 * values that the format and its scales represent (quantize, kernels/ops.h), and the resulting floats are
 * multiplied in fp32. The product of two such floats is exact. Hardware differs only in the order of
 * additions and, for scales that are no power of two (nvfp4's tensor scale, ternary), in a rounding to fp32
 * of 2^-24.
 *
 *                x                w                  dy               blocks of, along the sum x across
 *     e4m3       E4M3             E4M3               E4M3             a tensor, or 128 x 1 (w: 128 x 128)
 *     e5m2       E5M2             E5M2               E5M2             the same
 *     hybrid     E4M3             E4M3               E5M2             the same
 *     mxfp8      E4M3             E4M3               E4M3             32 x 1, scales E8M0, rounded up or down
 *     nvfp4      E2M1             E2M1, 16 x 16      E2M1 stochastic  16 x 1, scales E4M3 and of the tensor
 *     ternary    int8, a token    -1 0 1, a tensor   unquantized
 *
 * mxfp8 is OCP Microscaling 1.0, which rounds scales down; 2506.08027 rounds them up. 128 x 1 is
 * DeepSeek-V3's (2412.19437). nvfp4 is 2509.25149's, with a random Hadamard transform of blocks of 16 tokens
 * on both operands of grad_weight. ternary is BitNet b1.58's (2402.17764), with a straight-through estimator.
 * Every operand is quantized from the unquantized tensor, separately for each matmul.
 *
 * With a bf16 or f16 working type the quantized operands are still fp32, which represents every format and
 * scale exactly; the result is fp32 and is rounded once to the working type, after the bias.
 *
 * With delayed scaling (amax_history.h) the scale of a tensor comes from previous steps, and larger values
 * saturate.
 *
 * Scales must not depend on the layout. A tensor is therefore a logical tensor (q, k and v separately, over
 * all tp ranks, for x and dy of one microbatch), blocks restart at each logical tensor and each sequence,
 * and tp shards tensors only between blocks (checked by the recipe). Stochastic rounding is keyed by tensor
 * name, global sample and element.
 *
 * Caution: sums over tp ranks round differently from those of one rank, and a rounding to three mantissa bits
 * can amplify a difference in the last bit of a float to 1/16 of its value. Layouts are bit-identical over
 * pp, dp and schedules, not over tp. */
#pragma once

#include "layers/pass.h"

enum { QUANTIZED_PARTS = 3 }; // q, k and v

/* Quantization state of one linear layer. */
struct quantization {
    struct linear_precision precision; // {0} in a layer that stays in high precision
    int weight;                        // parameter index of the first fused matrix
    bool inputs_sharded;               // tp shards K, not N
    struct region x, w, dy;            // SCRATCH, quantized copies: f32[T, K], [N, K], [T, N] of this rank
    struct region magnitudes;          // SCRATCH
    struct region output, bias;        // SCRATCH, if activations are not f32: f32[T, K or N], [1, N]
    struct philox signs;               // of the Hadamard transform: one for the whole run
    struct philox dither[QUANTIZED_PARTS][MATMUL_COUNT];
};

/* shard_dim: dimension of the weight that tp shards. */
struct quantization quantization_declare(const struct layer_context *context, struct slot_layout *layout,
                                         int weight, int shard_dim);

/* Operands of a matmul, in the order of the table above. */
struct operands {
    struct tensor first, second;
};

/* Replaces the operands with their quantized f32 copies if the matmul is quantized. The copies are valid
 * until the next call for this layer. */
MUST_USE enum status quantize_operand(const struct quantization *quantization, const struct pass *pass,
                                      enum matmul matmul, struct operands *operands);
