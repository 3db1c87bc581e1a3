// SPDX-License-Identifier: Apache-2.0
/* How the row-wise kernels reach their rows and cut them into tasks. */
#pragma once

#include "kernels/cpu/cpu.h"

static inline float *f32_row(struct tensor t, int64_t row)
{
    return (float *)t.data + row * t.stride[0];
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t blocks_of(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

/* Rows of a task that has no sums across rows: enough of them to outweigh the dealing of tasks. */
static inline int64_t rows_each_task(int64_t columns)
{
    enum { TASK_ELEMENTS = 16384 };
    return columns < TASK_ELEMENTS ? TASK_ELEMENTS / (columns > 0 ? columns : 1) : 1;
}
