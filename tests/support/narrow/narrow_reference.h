// SPDX-License-Identifier: Apache-2.0
/* bf16 and f16 from their definition: sign, exponent and fraction as powers of two in double precision.
 * Shares no code with kernels/numbers/narrow.h. */
#pragma once

#include "kernels/tensor.h"

double narrow_value(enum dtype dtype, uint16_t bits);
/* The code nearest to x, ties to even. NaN: some NaN. */
uint16_t narrow_nearest(enum dtype dtype, float x);
/* u: half a unit in the last place of 1. */
double narrow_unit(enum dtype dtype);
/* The largest error of a sum of `count` products and two more terms, relative to the sum of their absolute
 * values. In fp32, rounded to nearest, an addition is off by half of eps = 2^-23, in any order. A tensor core
 * aligns and truncates: count + count / 8 + 1 eps for the products (tests/emulator/gpu/tensor_core.h). */
double narrow_sum_error(int64_t count);
