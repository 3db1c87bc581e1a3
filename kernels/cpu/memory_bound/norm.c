// SPDX-License-Identifier: Apache-2.0
/* LayerNorm and RMSNorm. A row stays in the L1 cache while it is read two or three times, so mean and
 * variance are computed in two passes: no cancellation, no running update.
 *
 * Sums over a row: four vectors of lanes in turn, added in a fixed tree. Sums over tokens (the weight
 * gradients): blocks of ROW_BLOCK rows, each summed in row order into its own line of scratch, and the lines
 * are then added in block order.
 *
 *     dx += rstd * (g - mean(g) - xhat * mean(g * xhat)),   g = dy * weight, xhat = (x - mean) * rstd */
#include "kernels/cpu/memory_bound/column_sum.h"
#include "kernels/cpu/memory_bound/residual.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

/* Independent chains of additions, to hide their latency. The loops over them, tails included, have constant
 * bounds: they are unrolled, and the sums stay in registers. */
enum { SUMS = 4 };

static float add_up(const vec sum[SUMS])
{
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The sums carry over from segment to segment. */
static void add_row(const float *x, int64_t n, vec total[SUMS])
{
    vec sum[SUMS];
    memcpy(sum, total, sizeof sum);
    int64_t i = 0;
    for (; i + SUMS * LANES <= n; i += SUMS * LANES)
        for (int s = 0; s < SUMS; s++)
            sum[s] += vec_load(x + i + s * LANES);
    for (int s = 0; s < SUMS; s++, i += LANES)
        if (i < n)
            sum[s] += vec_load_part(x + i, min_i64(n - i, LANES));
    memcpy(total, sum, sizeof sum);
}

/* (x - mean)^2. */
static void add_squares(const float *x, int64_t n, float mean, vec total[SUMS])
{
    vec sum[SUMS];
    memcpy(sum, total, sizeof sum);
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
    memcpy(total, sum, sizeof sum);
}

static float row_sum(struct tensor x, int64_t t)
{
    vec sum[SUMS] = {{0}};
    float buffer[SEGMENT_ELEMENTS];
    for (struct segment p = segment_first(x, t); p.count > 0; p = segment_next(x, p))
        add_row(row_in(x, p, buffer), p.count, sum);
    return add_up(sum);
}

/* The sum of (x - mean)^2. */
static float row_squares(struct tensor x, int64_t t, float mean)
{
    vec sum[SUMS] = {{0}};
    float buffer[SEGMENT_ELEMENTS];
    for (struct segment p = segment_first(x, t); p.count > 0; p = segment_next(x, p))
        add_squares(row_in(x, p, buffer), p.count, mean, sum);
    return add_up(sum);
}

static void forward_segment(const struct norm_forward *op, struct segment p, float mean, float rstd)
{
    float buffer[4][SEGMENT_ELEMENTS];
    const float *x = row_in(op->x, p, buffer[0]),
                *weight = row_in(op->weight, segment_of_vector(p), buffer[1]);
    float *restrict y = row_out(op->y, p, buffer[2]);
    if (op->kind == NORM_LAYER) {
        const float *bias = row_in(op->bias, segment_of_vector(p), buffer[3]);
        for (int64_t i = 0; i < p.count; i++)
            y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
    } else {
        for (int64_t i = 0; i < p.count; i++)
            y[i] = x[i] * rstd * weight[i];
    }
    row_store(op->y, p, y);
}

static void forward_row(const struct norm_forward *op, int64_t t)
{
    float n = (float)op->x.dim[1];
    float mean = op->kind == NORM_LAYER ? row_sum(op->x, t) / n : 0.0F;
    float rstd = 1.0F / sqrtf(row_squares(op->x, t, mean) / n + op->epsilon);
    for (struct segment p = segment_first(op->x, t); p.count > 0; p = segment_next(op->x, p))
        forward_segment(op, p, mean, rstd);
    if (op->kind == NORM_LAYER)
        ((float *)op->mean.data)[t] = mean;
    ((float *)op->rstd.data)[t] = rstd;
}

struct forward {
    const struct norm_forward *op;
    const struct residual_forward *before; // computes x of a row first; NULL: x is given
};

static void forward_task(void *context, int64_t task)
{
    const struct forward *args = context;
    const struct norm_forward *op = args->op;
    struct dropout_rule rule = {0};
    if (args->before != NULL)
        rule = dropout_rule(&args->before->dropout);
    int64_t each = rows_each_task(op->x.dim[1]), end = min_i64((task + 1) * each, op->x.dim[0]);
    for (int64_t t = task * each; t < end; t++) {
        if (args->before != NULL)
            residual_forward_row(args->before, &rule, t);
        forward_row(op, t);
    }
}

static void run_forward(struct device *device, struct forward args)
{
    struct tensor x = args.op->x;
    cpu_parallel(device, blocks_of(x.dim[0], rows_each_task(x.dim[1])), forward_task, &args);
}

void cpu_norm_forward(struct device *device, const struct norm_forward *op)
{
    run_forward(device, (struct forward){.op = op});
}

void cpu_residual_norm_forward(struct device *device, const struct residual_norm_forward *op)
{
    run_forward(device, (struct forward){.op = &op->norm, .before = &op->residual});
}

struct backward {
    const struct norm_backward *op;
    const struct residual_backward *then; // runs on dx of a row next; NULL: nothing
    float *partial;                       // [blocks][2][columns]: dweight, then dbias, of each block of rows
    int64_t columns;
};

/* A segment of the inputs of a row's backward pass. */
struct lines {
    const float *x, *dy, *weight;
};

static struct lines lines_in(const struct norm_backward *op, struct segment p,
                             float buffer[3][SEGMENT_ELEMENTS])
{
    return (struct lines){row_in(op->x, p, buffer[0]), row_in(op->dy, p, buffer[1]),
                          row_in(op->weight, segment_of_vector(p), buffer[2])};
}

/* g and g * xhat of a segment. */
static void add_products(struct lines in, int64_t n, float mean, float rstd, vec plain[SUMS],
                         vec product[SUMS])
{
    vec g_sum[2] = {plain[0], plain[1]}, g_xhat_sum[2] = {product[0], product[1]};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        for (int s = 0; s < 2; s++) {
            int64_t at = i + s * LANES;
            vec g = vec_load(in.dy + at) * vec_load(in.weight + at);
            g_sum[s] += g;
            g_xhat_sum[s] = vec_fma(g, (vec_load(in.x + at) - mean) * rstd, g_xhat_sum[s]);
        }
    }
    for (int s = 0; s < 2; s++, i += LANES) {
        if (i >= n)
            break;
        int64_t count = min_i64(n - i, LANES);
        vec g = vec_load_part(in.dy + i, count) * vec_load_part(in.weight + i, count);
        g_sum[s] += g;
        g_xhat_sum[s] = vec_fma(g, (vec_load_part(in.x + i, count) - mean) * rstd, g_xhat_sum[s]);
    }
    memcpy(plain, g_sum, sizeof g_sum);
    memcpy(product, g_xhat_sum, sizeof g_xhat_sum);
}

/* Values shared by all elements of a row. */
struct row_of {
    float mean, rstd, g_mean, g_xhat_mean;
};

static struct row_of row_means(const struct norm_backward *op, int64_t t)
{
    vec plain[SUMS] = {{0}}, product[SUMS] = {{0}};
    float buffer[3][SEGMENT_ELEMENTS], n = (float)op->x.dim[1];
    bool layer = op->kind == NORM_LAYER;
    struct row_of row = {.mean = layer ? ((const float *)op->mean.data)[t] : 0.0F,
                         .rstd = ((const float *)op->rstd.data)[t]};
    for (struct segment p = segment_first(op->x, t); p.count > 0; p = segment_next(op->x, p))
        add_products(lines_in(op, p, buffer), p.count, row.mean, row.rstd, plain, product);
    row.g_mean = layer ? add_up(plain) / n : 0.0F;
    row.g_xhat_mean = add_up(product) / n;
    return row;
}

static void backward_segment(struct lines in, int64_t n, struct row_of row, float *restrict dx,
                             float *restrict dweight, float *restrict dbias)
{
    const float *restrict x = in.x, *restrict dy = in.dy, *restrict weight = in.weight;
    const float mean = row.mean, rstd = row.rstd, g_mean = row.g_mean, g_xhat_mean = row.g_xhat_mean;
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - mean) * rstd;
        dx[i] += rstd * (dy[i] * weight[i] - g_mean - xhat * g_xhat_mean);
        dweight[i] += dy[i] * xhat;
        dbias[i] += dy[i];
    }
}

/* A segment of the gradient that dx is added to. */
static float *gradient_so_far(const struct norm_backward *op, struct segment p, float *buffer)
{
    float *dx = row_out(op->dx, p, buffer);
    const float *from = op->dresidual.data != NULL ? row_in(op->dresidual, p, buffer) : NULL;
    if (from == NULL)
        memset(dx, 0, (size_t)p.count * sizeof *dx);
    else if (from != dx)
        memcpy(dx, from, (size_t)p.count * sizeof *dx);
    return dx;
}

static void backward_row(const struct norm_backward *op, int64_t t, float *dweight, float *dbias)
{
    struct row_of row = row_means(op, t);
    for (struct segment p = segment_first(op->x, t); p.count > 0; p = segment_next(op->x, p)) {
        float buffer[3][SEGMENT_ELEMENTS], dx_buffer[SEGMENT_ELEMENTS];
        float *dx = gradient_so_far(op, p, dx_buffer);
        backward_segment(lines_in(op, p, buffer), p.count, row, dx, dweight + p.column, dbias + p.column);
        row_store(op->dx, p, dx);
    }
}

static void backward_task(void *context, int64_t task)
{
    const struct backward *args = context;
    float *dweight = args->partial + task * 2 * args->columns, *dbias = dweight + args->columns;
    memset(dweight, 0, (size_t)(2 * args->columns) * sizeof *dweight);
    struct dropout_rule rule = {0};
    if (args->then != NULL)
        rule = dropout_rule(&args->then->dropout);
    int64_t end = min_i64((task + 1) * ROW_BLOCK, args->op->x.dim[0]);
    for (int64_t t = task * ROW_BLOCK; t < end; t++) {
        backward_row(args->op, t, dweight, dbias);
        if (args->then != NULL)
            residual_backward_row(args->then, &rule, t);
    }
}

size_t cpu_norm_backward_scratch(const struct norm_backward *op)
{
    return (size_t)(blocks_of(op->x.dim[0], ROW_BLOCK) * 2 * op->x.dim[1]) * sizeof(float);
}

static void run_backward(struct device *device, const struct norm_backward *op,
                         const struct residual_backward *then)
{
    int64_t blocks = blocks_of(op->x.dim[0], ROW_BLOCK), columns = op->x.dim[1];
    float *partial = cpu_scratch(device, cpu_norm_backward_scratch(op));
    struct backward args = {op, then, partial, columns};
    cpu_parallel(device, blocks, backward_task, &args);

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

void cpu_norm_backward(struct device *device, const struct norm_backward *op)
{
    run_backward(device, op, NULL);
}

void cpu_residual_norm_backward(struct device *device, const struct residual_norm_backward *op)
{
    run_backward(device, &op->norm, residual_backward_is_done(&op->residual) ? NULL : &op->residual);
}
