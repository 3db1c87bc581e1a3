// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/memory_bound/column_sum.h"

#include "kernels/cpu/rows.h"

#include <string.h>

enum { COLUMN_BLOCK = 512 }; // columns per task of the second step

struct column_sum_task {
    const struct column_sum *op;
    float *partial; // [blocks][columns]
};

/* Four rows at a time: the line of sums is loaded and stored once for all four. */
static void add_four_rows(const float *row, int64_t stride, int64_t n, float *restrict sum)
{
    const float *r1 = row + stride, *r2 = r1 + stride, *r3 = r2 + stride;
    for (int64_t i = 0; i < n; i++)
        sum[i] = (((sum[i] + row[i]) + r1[i]) + r2[i]) + r3[i];
}

/* The columns of segment p, rows [p.row, end). */
static void add_rows(struct tensor in, struct segment p, int64_t end, float *restrict sum)
{
    float buffer[4][SEGMENT_ELEMENTS];
    for (; p.row + 4 <= end; p.row += 4) {
        struct segment next = p;
        const float *row = row_in(in, p, buffer[0]);
        for (int r = 1; r < 4; r++) {
            next.row++;
            row_in(in, next, buffer[r]);
        }
        add_four_rows(row, in.dtype == F32 ? in.stride[0] : SEGMENT_ELEMENTS, p.count, sum);
    }
    for (; p.row < end; p.row++) {
        const float *row = row_in(in, p, buffer[0]);
        for (int64_t i = 0; i < p.count; i++)
            sum[i] += row[i];
    }
}

static void block_task(void *context, int64_t task)
{
    const struct column_sum_task *args = context;
    struct tensor in = args->op->in;
    int64_t n = in.dim[1], t = task * ROW_BLOCK, end = min_i64(t + ROW_BLOCK, in.dim[0]);
    float *sum = args->partial + task * n;
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (struct segment p = segment_first(in, t); p.count > 0; p = segment_next(in, p))
        add_rows(in, p, end, sum + p.column);
}

static void partial_task(void *context, int64_t task)
{
    const struct partial_sums *sums = context;
    int64_t begin = task * COLUMN_BLOCK, n = min_i64(COLUMN_BLOCK, sums->columns - begin);
    float total[COLUMN_BLOCK] = {0};
    for (int64_t b = 0; b < sums->blocks; b++) {
        const float *line = sums->partial + b * sums->stride + begin;
        for (int64_t i = 0; i < n; i++)
            total[i] += line[i];
    }
    float *out = sums->out + begin;
    for (int64_t i = 0; i < n; i++)
        out[i] = sums->accumulate ? out[i] + total[i] : total[i];
}

void add_partial_sums(struct device *device, struct partial_sums sums)
{
    cpu_parallel(device, blocks_of(sums.columns, COLUMN_BLOCK), partial_task, &sums);
}

size_t cpu_column_sum_scratch(const struct column_sum *op)
{
    return (size_t)(blocks_of(op->in.dim[0], ROW_BLOCK) * op->in.dim[1]) * sizeof(float);
}

void cpu_column_sum(struct device *device, const struct column_sum *op)
{
    int64_t blocks = blocks_of(op->in.dim[0], ROW_BLOCK), columns = op->in.dim[1];
    struct column_sum_task args = {op, cpu_scratch(device, cpu_column_sum_scratch(op))};
    cpu_parallel(device, blocks, block_task, &args);
    add_partial_sums(device, (struct partial_sums){.partial = args.partial,
                                                   .blocks = blocks,
                                                   .stride = columns,
                                                   .columns = columns,
                                                   .out = op->out.data,
                                                   .accumulate = true});
}
