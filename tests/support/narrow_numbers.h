// SPDX-License-Identifier: Apache-2.0
/* bf16 and f16 by their definition: sign, exponent and fraction as powers of two in double precision. Shares
 * no line with kernels/narrow.h. */
#pragma once

#include "kernels/tensor.h"

double narrow_value(enum dtype dtype, uint16_t bits);
/* The pattern nearest to x, of two equally near the even one. NaN: some NaN. */
uint16_t narrow_nearest(enum dtype dtype, float x);
/* u: half a unit in the last place of 1. */
double narrow_unit(enum dtype dtype);
