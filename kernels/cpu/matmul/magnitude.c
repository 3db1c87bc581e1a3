// SPDX-License-Identifier: Apache-2.0
/* Magnitudes of a matrix. It is divided into at most 64 ranges of rows, whose results fit on the stack; they
 * are combined in order, though neither the maximum nor a sum of whole units depends on it. */
#include "kernels/cpu/rows.h"
#include "kernels/numbers/number_round.h"

#include <math.h>

enum { MAX_TASKS = 64 };

struct magnitude_task {
    const struct magnitude *op;
    int64_t rows_each;
    uint32_t largest[MAX_TASKS];
    double sum[MAX_TASKS];
};

/* As integers, floats without sign keep their order, with infinity and NaN largest. */
static uint32_t largest_of(const float *x, int64_t count)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t a = bits_of_float(x[i]) & 0x7FFFFFFFU;
        largest = a > largest ? a : largest;
    }
    return largest;
}

/* In units of 2^-24: integers, whose sum is exact below 2^53. */
static double sum_of(const float *x, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += rint(fabs((double)x[i]) * 0x1p24);
    return sum;
}

static float larger(float a, float b)
{
    uint32_t i = bits_of_float(a) & 0x7FFFFFFFU, j = bits_of_float(b) & 0x7FFFFFFFU;
    return float_of_bits(i > j ? i : j);
}

static void run_task(void *context, int64_t task)
{
    struct magnitude_task *args = context;
    const struct magnitude *op = args->op;
    int64_t end = min_i64((task + 1) * args->rows_each, op->in.dim[0]);
    uint32_t largest = 0;
    double sum = 0.0;
    for (int64_t r = task * args->rows_each; r < end; r++) {
        uint32_t of_row = 0;
        float buffer[SEGMENT_ELEMENTS];
        for (struct segment p = segment_first(op->in, r); p.count > 0; p = segment_next(op->in, p)) {
            const float *x = row_in(op->in, p, buffer);
            uint32_t of_segment = op->kind == MAGNITUDE_SUM ? 0 : largest_of(x, p.count);
            sum += op->kind == MAGNITUDE_SUM ? sum_of(x, p.count) : 0.0;
            of_row = of_segment > of_row ? of_segment : of_row;
        }
        largest = of_row > largest ? of_row : largest;
        if (op->kind == MAGNITUDE_LARGEST_IN_ROW) {
            float *out = (float *)op->out.data + r;
            *out = larger(float_of_bits(of_row), op->accumulate ? *out : 0.0F);
        }
    }
    args->largest[task] = largest;
    args->sum[task] = sum;
}

void cpu_magnitude(struct device *device, const struct magnitude *op)
{
    int64_t rows = op->in.dim[0], each = rows_each_task(op->in.dim[1]);
    struct magnitude_task args = {.op = op};
    args.rows_each = blocks_of(rows, MAX_TASKS) > each ? blocks_of(rows, MAX_TASKS) : each;
    int64_t tasks = blocks_of(rows, args.rows_each);
    cpu_parallel(device, tasks, run_task, &args);
    if (op->kind == MAGNITUDE_LARGEST_IN_ROW)
        return;
    float largest = 0.0F;
    double sum = 0.0;
    for (int64_t t = 0; t < tasks; t++) {
        largest = larger(largest, float_of_bits(args.largest[t]));
        sum += args.sum[t];
    }
    if (op->kind == MAGNITUDE_LARGEST) {
        float *out = op->out.data;
        *out = larger(largest, op->accumulate ? *out : 0.0F);
    } else {
        double *out = op->out.data;
        *out = sum * 0x1p-24 + (op->accumulate ? *out : 0.0);
    }
}
