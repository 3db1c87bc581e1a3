// SPDX-License-Identifier: Apache-2.0
/* The optimizer's ops: sums of squares for the global norm, and AdamW in one pass. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#include "base/normal.h"

#include <math.h>

enum { BLOCKS_EACH_TASK = 16 };

struct squares_args {
    const float *x;
    int64_t count, each; // elements in all, and per block
    double *block;
};

/* LANES sums by index, in two vectors of doubles, added in a tree. fp32 squares are exact in fp64. */
static double squares_of(const float *x, int64_t n)
{
    vecd sum[2] = {{0}};
    for (int64_t i = 0; i < n; i += LANES) {
        float line[LANES];
        vec_ahead(x + i);
        vec_store(line, i + LANES <= n ? vec_load(x + i) : vec_load_part(x + i, n - i));
        for (int half = 0; half < 2; half++) {
            vecd wide = vecd_widen(line + half * LANES_DOUBLE);
            sum[half] += wide * wide;
        }
    }
    vecd lane = sum[0] + sum[1];
    for (int width = LANES_DOUBLE / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

static void squares_task(void *context, int64_t task)
{
    const struct squares_args *args = context;
    for (int64_t b = task * BLOCKS_EACH_TASK; b < (task + 1) * BLOCKS_EACH_TASK; b++) {
        int64_t begin = b * args->each, left = args->count - begin;
        if (left <= 0)
            return;
        args->block[b] = squares_of(args->x + begin, min_i64(args->each, left));
    }
}

void cpu_squares(struct device *device, const struct squares_list *op)
{
    for (const struct squares *one = op->at; one < op->at + op->count; one++) {
        int64_t columns = one->x.ndim == 1 ? 1 : one->x.dim[1];
        struct squares_args args = {one->x.data, tensor_count(one->x), squares_block_rows(columns) * columns,
                                    one->out.data};
        cpu_parallel(device, blocks_of(tensor_count(one->out), BLOCKS_EACH_TASK), squares_task, &args);
    }
}

void cpu_sum(struct device *device, const struct sum_list *op)
{
    (void)device;
    for (const struct sum *one = op->at; one < op->at + op->count; one++) {
        const double *x = one->x.data;
        double total = 0.0;
        for (int64_t i = 0; i < one->x.dim[0]; i++)
            total += x[i];
        ((double *)one->out.data)[0] = total;
    }
}

enum { ADAMW_BLOCK = 16384 };

static void adamw_block(const struct adamw_hyper *h, float decay, const float *restrict gradient,
                        float *restrict weight, float *restrict m, float *restrict v, int64_t n)
{
    const float lr = h->lr, epsilon = h->epsilon, scale = h->gradient_scale;
    const float r1 = h->one_minus_beta1, r2 = h->one_minus_beta2;
    const float correction1 = h->correction1, correction2 = h->correction2;
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i] * scale;
        m[i] = m[i] - r1 * m[i] + r1 * g;
        v[i] = v[i] - r2 * v[i] + r2 * g * g;
        float step = (m[i] / correction1) / (sqrtf(v[i] / correction2) + epsilon);
        weight[i] -= lr * (step + decay * weight[i]);
    }
}

/* Rounds n consecutive elements of the whole tensor, from index `number` on. */
static void round_run(struct philox generator, uint64_t step, int64_t number, const float *from, uint16_t *to,
                      int64_t n)
{
    enum { DRAWN = 8 * NORMAL_BLOCK }; // two halves of four words
    uint32_t words[4][NORMAL_BLOCK];
    for (int64_t i = 0; i < n;) {
        const int64_t first = (number + i) / 8, end = min_i64(n, 8 * first + DRAWN - number);
        normal_words(generator, step, (uint64_t)first, normal_counters((number + n + 7) / 8 - first), words);
        for (; i < end; i++) {
            int64_t k = number + i - 8 * first;
            to[i] = bf16_of_stochastic(from[i], words[k % 8 / 2][k / 8] >> 16 * (k % 2) & 0xffffU);
        }
    }
}

/* Elements [begin, begin + n) of the slice, row by row of the whole tensor. */
static void round_stochastic(const struct adamw *op, int64_t begin, const float *from, int64_t n)
{
    const struct stochastic *s = &op->stochastic;
    uint16_t *to = (uint16_t *)op->weight.data + begin;
    for (int64_t i = 0; i < n;) {
        const int64_t at = s->first + begin + i, row = at / s->width, column = at % s->width;
        const int64_t run = s->width == s->columns ? n - i : min_i64(s->width - column, n - i);
        round_run(s->generator, op->hyper->step, s->begin + row * s->columns + column, from + i, to + i, run);
        i += run;
    }
}

static void adamw_segment(const struct adamw *op, int64_t begin, float *weight, int64_t n)
{
    adamw_block(op->hyper, op->decay ? op->hyper->weight_decay : 0.0F,
                (const float *)op->gradient.data + begin, weight, (float *)op->m.data + begin,
                (float *)op->v.data + begin, n);
}

/* Without master weights: a segment at a time in fp32. */
static void adamw_in_bf16(const struct adamw *op, int64_t begin, int64_t n)
{
    float weight[SEGMENT_ELEMENTS];
    for (int64_t end = begin + n; begin < end; begin += SEGMENT_ELEMENTS) {
        int64_t count = min_i64(SEGMENT_ELEMENTS, end - begin);
        widen_floats(BF16, row_bytes(op->weight, 0, begin), weight, count);
        adamw_segment(op, begin, weight, count);
        round_stochastic(op, begin, weight, count);
    }
}

static void adamw_task(void *context, int64_t task)
{
    const struct adamw *op = context;
    int64_t begin = task * ADAMW_BLOCK, n = min_i64(ADAMW_BLOCK, tensor_count(op->weight) - begin);
    if (op->weight.dtype == BF16) {
        adamw_in_bf16(op, begin, n);
        return;
    }
    adamw_segment(op, begin, (float *)op->weight.data + begin, n);
    if (op->working.data != NULL)
        narrow_floats(op->working.dtype, (const float *)op->weight.data + begin,
                      row_bytes(op->working, 0, begin), n);
}

void cpu_adamw(struct device *device, const struct adamw_list *op)
{
    for (int64_t i = 0; i < op->count; i++) {
        struct adamw one = op->at[i];
        if (tensor_count(one.weight) > 0 && one.hyper->skip == 0.0F)
            cpu_parallel(device, blocks_of(tensor_count(one.weight), ADAMW_BLOCK), adamw_task, &one);
    }
}
