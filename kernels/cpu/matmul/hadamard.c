// SPDX-License-Identifier: Apache-2.0
/* The random Hadamard transform of blocks of 16 rows: four butterfly stages over rows 1, 2, 4 and 8 apart, a
 * strip of columns at a time. The order of additions is the same for every element. */
#include "kernels/cpu/rows.h"

enum { STRIP = 64 };

struct hadamard_task {
    const struct hadamard *op;
    float sign[HADAMARD_ROWS]; // includes the factor 1/4, which is exact
    int64_t strips;
};

static void run_task(void *context, int64_t task)
{
    const struct hadamard_task *args = context;
    const struct hadamard *op = args->op;
    int64_t row = task / args->strips * HADAMARD_ROWS, column = task % args->strips * STRIP;
    int columns = (int)min_i64(STRIP, op->in.dim[1] - column);
    float x[HADAMARD_ROWS][STRIP];
    for (int i = 0; i < HADAMARD_ROWS; i++) {
        float buffer[STRIP];
        const float *in = row_in(op->in, (struct segment){row + i, column, columns}, buffer);
        for (int j = 0; j < columns; j++)
            x[i][j] = in[j] * args->sign[i];
    }
    for (int apart = 1; apart < HADAMARD_ROWS; apart *= 2) {
        for (int i = 0; i < HADAMARD_ROWS; i++) {
            for (int j = 0; (i & apart) == 0 && j < columns; j++) {
                float a = x[i][j], b = x[i + apart][j];
                x[i][j] = a + b;
                x[i + apart][j] = a - b;
            }
        }
    }
    for (int i = 0; i < HADAMARD_ROWS; i++)
        for (int j = 0; j < columns; j++)
            f32_row(op->out, row + i)[column + j] = x[i][j];
}

void cpu_hadamard(struct device *device, const struct hadamard *op)
{
    struct hadamard_task args = {.op = op, .strips = blocks_of(op->in.dim[1], STRIP)};
    for (int i = 0; i < HADAMARD_ROWS; i++)
        args.sign[i] = (philox_word(op->signs, 0, (uint64_t)i) & 1) != 0 ? -0.25F : 0.25F;
    cpu_parallel(device, op->in.dim[0] / HADAMARD_ROWS * args.strips, run_task, &args);
}
