// SPDX-License-Identifier: Apache-2.0
/* Sums over tokens, independent of the number of threads: blocks of ROW_BLOCK rows are summed separately, in
 * row order, and then the blocks in order. Shared by column_sum and the weight gradients of the norms. */
#pragma once

#include "kernels/cpu/cpu.h"

enum { ROW_BLOCK = 64 };

/* out[n] (+)= partial[0][n] + partial[1][n] + ..., the lines `stride` floats apart. */
struct partial_sums {
    const float *partial;
    int64_t blocks, stride, columns;
    float *out;
    bool accumulate;
};
void add_partial_sums(struct device *device, struct partial_sums sums);
