// SPDX-License-Identifier: Apache-2.0
/* How a tensor core adds the products of 16-bit operands to an fp32 sum:
 *
 *     1. the exact products of a step, and the sum so far, are aligned to the largest of them
 *     2. bits far below its leading one are cut off (rounded toward zero)
 *     3. the rest is added exactly, and the result is cut to fp32 (rounded toward zero)
 *
 * NVIDIA does not document it. As measured, Volta adds 4 products in a step and keeps 23 bits after the
 * leading one, Ampere 8 and 24, Hopper 16 and 25 (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of
 * NVIDIA tensor cores, PeerJ Computer Science 7:e330; Xie, Wang, Yang, Yang: MMA-Sim, arXiv 2511.10909;
 * Khattak, Mikaitis: Accurate Models of NVIDIA Tensor Cores, arXiv 2512.07004). Here a step has 16 products
 * and keeps 23 bits: the most terms that lose bits, and the fewest bits of all.
 *
 * With eps = 2^-23, a step of n products is off by at most (n + 1) eps of its largest sum of absolute values:
 * the largest term is exact, each of the n others loses less than eps of it, and the result less than eps of
 * itself. So a sum of K products in steps of 8 or more is off by at most (K + K / 8 + 1) eps times the sum of
 * their absolute values, in any order; tests derive their bounds from that. */
#pragma once

#include <math.h>
#include <stdint.h>

enum { TENSOR_CORE_STEP = 16, TENSOR_CORE_LANES = 8 };

/* Independent sums, side by side. */
typedef float tensor_core_floats __attribute__((vector_size(4 * TENSOR_CORE_LANES)));
typedef int32_t tensor_core_ints __attribute__((vector_size(4 * TENSOR_CORE_LANES)));

/* a where the mask is all ones, b where it is 0. */
#define TENSOR_CORE_SELECT(mask, a, b) (((mask) & (tensor_core_ints)(a)) | (~(mask) & (tensor_core_ints)(b)))

/* x rounded toward zero where the mask is all ones, else 0. */
#define TENSOR_CORE_TRUNCATED(x, mask) \
    __builtin_convertvector((tensor_core_floats)((tensor_core_ints)(x) & (mask)), tensor_core_ints)

/* Adds a step of products, each exact in fp32. Bits below 2^-123 are cut, too. */
static inline void tensor_core_add(tensor_core_floats *sum,
                                   const tensor_core_floats product[TENSOR_CORE_STEP])
{
    const tensor_core_ints zero = {0}, magnitude = zero + 0x7fffffff, infinite = zero + 0x7f800000;
    tensor_core_ints largest = (tensor_core_ints)*sum & magnitude;
    for (int k = 0; k < TENSOR_CORE_STEP; k++) {
        const tensor_core_ints size = (tensor_core_ints)product[k] & magnitude;
        largest = TENSOR_CORE_SELECT(size > largest, size, largest);
    }
    const tensor_core_ints finite = largest < infinite, least = zero + ((127 - 100) << 23); // 2^-100
    const tensor_core_ints exponent = TENSOR_CORE_SELECT(largest > least, largest, least) & infinite;
    // In units of the last bit kept, 2^-23 of the largest's leading one: below 2^24 per term.
    const tensor_core_ints place = exponent - (23 << 23);
    const tensor_core_floats unit = (tensor_core_floats)place,
                             per_unit = (tensor_core_floats)((2 * 127 << 23) - place); // its reciprocal
    tensor_core_ints total = TENSOR_CORE_TRUNCATED(*sum * per_unit, finite);
    tensor_core_floats plain = *sum;
    for (int k = 0; k < TENSOR_CORE_STEP; k++) {
        total += TENSOR_CORE_TRUNCATED(product[k] * per_unit, finite);
        plain += product[k];
    }
    // The nearest fp32 value, or its neighbour if that is nearer to zero.
    const tensor_core_ints size = TENSOR_CORE_SELECT(total < 0, -total, total);
    tensor_core_floats cut = __builtin_convertvector(size, tensor_core_floats);
    cut =
        (tensor_core_floats)((tensor_core_ints)cut + (__builtin_convertvector(cut, tensor_core_ints) > size));
    cut = (tensor_core_floats)((tensor_core_ints)(cut * unit) | (total & ~magnitude));
    *sum = (tensor_core_floats)TENSOR_CORE_SELECT(finite, cut, plain); // infinities and NaN
}
