// SPDX-License-Identifier: Apache-2.0
/* LayerNorm and RMSNorm. A row stays in the first-level cache while it is read two or three times, so
 * mean and variance are each taken plainly, in two passes: no cancellation, no running update.
 *
 * Sums over a row: four vectors of lanes in turn, added in a fixed tree. Sums over tokens (the weights'
 * gradients): blocks of ROW_BLOCK rows, each added up in row order into its own line of scratch, and
 * the lines are then added in block order.
 *
 *     dx += rstd * (g - mean(g) - xhat * mean(g * xhat)),   g = dy * weight, xhat = (x - mean) * rstd */
#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

/* Independent chains of additions, so that an addition need not wait for the last. The loops over them have
 * constant bounds, tails too: then they are unrolled, and the sums live in registers. */
enum { SUMS = 4 };

static float add_up(const vec sum[SUMS])
{
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float row_sum(const float *x, int64_t n)
{
    vec sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * LANES <= n; i += SUMS * LANES)
        for (int s = 0; s < SUMS; s++)
            sum[s] += vec_load(x + i + s * LANES);
    for (int s = 0; s < SUMS; s++, i += LANES)
        if (i < n)
            sum[s] += vec_load_part(x + i, min_i64(n - i, LANES));
    return add_up(sum);
}

/* The sum of (x - mean)^2. */
static float row_squares(const float *x, int64_t n, float mean)
{
    vec sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * LANES <= n; i += SUMS * LANES) {
        for (int s = 0; s < SUMS; s++) {
            vec d = vec_load(x + i + s * LANES) - mean;
            sum[s] = vec_fma(d, d, sum[s]);
        }
    }
    for (int s = 0; s < SUMS; s++, i += LANES) {
        if (i >= n)
            break;
        int64_t count = min_i64(n - i, LANES);
        vec d = vec_first(vec_load_part(x + i, count) - mean, count);
        sum[s] = vec_fma(d, d, sum[s]);
    }
    return add_up(sum);
}

static void forward_row(const struct norm_forward *op, int64_t t)
{
    const float *x = f32_row(op->x, t), *weight = op->weight.data, *bias = op->bias.data;
    float *restrict y = f32_row(op->y, t);
    int64_t n = op->x.dim[1];
    float mean = op->kind == NORM_LAYER ? row_sum(x, n) / (float)n : 0.0F;
    float rstd = 1.0F / sqrtf(row_squares(x, n, mean) / (float)n + op->epsilon);
    if (op->kind == NORM_LAYER) {
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
        ((float *)op->mean.data)[t] = mean;
    } else {
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * rstd * weight[i];
    }
    ((float *)op->rstd.data)[t] = rstd;
}

static void forward_task(void *context, int64_t task)
{
    const struct norm_forward *op = context;
    int64_t each = rows_each_task(op->x.dim[1]), end = min_i64((task + 1) * each, op->x.dim[0]);
    for (int64_t t = task * each; t < end; t++)
        forward_row(op, t);
}

void cpu_norm_forward(struct device *device, const struct norm_forward *op)
{
    struct norm_forward args = *op;
    cpu_parallel(device, blocks_of(op->x.dim[0], rows_each_task(op->x.dim[1])), forward_task, &args);
}

struct backward {
    const struct norm_backward *op;
    float *partial; // [blocks][2][columns]: dweight, then dbias, of each block of rows
    int64_t columns;
};

/* sum(g) and sum(g * xhat) of a row. */
static void row_sums(const struct norm_backward *op, int64_t t, float mean, float rstd, float *g_sum,
                     float *g_xhat_sum)
{
    const float *x = f32_row(op->x, t), *dy = f32_row(op->dy, t), *weight = op->weight.data;
    int64_t n = op->x.dim[1];
    vec plain[SUMS] = {{0}}, product[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        for (int s = 0; s < 2; s++) {
            int64_t at = i + s * LANES;
            vec g = vec_load(dy + at) * vec_load(weight + at);
            plain[s] += g;
            product[s] = vec_fma(g, (vec_load(x + at) - mean) * rstd, product[s]);
        }
    }
    for (int s = 0; s < 2; s++, i += LANES) {
        if (i >= n)
            break;
        int64_t count = min_i64(n - i, LANES);
        vec g = vec_load_part(dy + i, count) * vec_load_part(weight + i, count);
        plain[s] += g;
        product[s] = vec_fma(g, (vec_load_part(x + i, count) - mean) * rstd, product[s]);
    }
    *g_sum = add_up(plain);
    *g_xhat_sum = add_up(product);
}

static void backward_row(const struct norm_backward *op, int64_t t, float *restrict dweight,
                         float *restrict dbias)
{
    const float *restrict x = f32_row(op->x, t), *restrict dy = f32_row(op->dy, t);
    const float *restrict weight = op->weight.data;
    float *restrict dx = f32_row(op->dx, t);
    int64_t n = op->x.dim[1];
    float mean = op->kind == NORM_LAYER ? ((const float *)op->mean.data)[t] : 0.0F;
    float rstd = ((const float *)op->rstd.data)[t], g_sum, g_xhat_sum;
    row_sums(op, t, mean, rstd, &g_sum, &g_xhat_sum);
    float g_mean = op->kind == NORM_LAYER ? g_sum / (float)n : 0.0F;
    float g_xhat_mean = g_xhat_sum / (float)n;
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - mean) * rstd;
        dx[i] += rstd * (dy[i] * weight[i] - g_mean - xhat * g_xhat_mean);
        dweight[i] += dy[i] * xhat;
        dbias[i] += dy[i];
    }
}

static void backward_task(void *context, int64_t task)
{
    const struct backward *job = context;
    float *dweight = job->partial + task * 2 * job->columns, *dbias = dweight + job->columns;
    memset(dweight, 0, (size_t)(2 * job->columns) * sizeof *dweight);
    int64_t end = min_i64((task + 1) * ROW_BLOCK, job->op->x.dim[0]);
    for (int64_t t = task * ROW_BLOCK; t < end; t++)
        backward_row(job->op, t, dweight, dbias);
}

size_t cpu_norm_backward_scratch(const struct norm_backward *op)
{
    return (size_t)(blocks_of(op->x.dim[0], ROW_BLOCK) * 2 * op->x.dim[1]) * sizeof(float);
}

void cpu_norm_backward(struct device *device, const struct norm_backward *op)
{
    int64_t blocks = blocks_of(op->x.dim[0], ROW_BLOCK), columns = op->x.dim[1];
    float *partial = cpu_scratch(device, cpu_norm_backward_scratch(op));
    struct backward job = {op, partial, columns};
    cpu_parallel(device, blocks, backward_task, &job);

    struct partial_sums sums = {
        .partial = partial, .blocks = blocks, .stride = 2 * columns, .columns = columns};
    sums.out = op->dweight.data;
    add_partial_sums(device, sums);
    if (op->dbias.data != NULL) {
        sums.partial = partial + columns;
        sums.out = op->dbias.data;
        add_partial_sums(device, sums);
    }
}
