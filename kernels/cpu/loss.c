// SPDX-License-Identifier: Apache-2.0
/* Cross entropy, one row a task: a row of GPT-2's logits is 200 KB, which the second-level cache holds.
 * Each step goes over the logits once; what separates the steps is the caller's reduction over ranks. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

static void max_task(void *context, int64_t t)
{
    const struct loss_max *op = context;
    const float *x = f32_row(op->logits, t);
    int64_t n = op->columns, i = 0;
    vec most[4];
    for (int s = 0; s < 4; s++)
        most[s] = vec_all(-INFINITY);
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int s = 0; s < 4; s++) {
            vec_ahead(x + i + s * LANES);
            most[s] = vec_max(most[s], vec_load(x + i + s * LANES));
        }
    float max = vec_largest(vec_max(vec_max(most[0], most[1]), vec_max(most[2], most[3])));
    for (; i < n; i++)
        max = max > x[i] ? max : x[i];
    ((float *)op->max.data)[t] = max;
}

void cpu_loss_max(struct device *device, const struct loss_max *op)
{
    struct loss_max args = *op;
    cpu_parallel(device, op->logits.dim[0], max_task, &args);
}

/* This rank's column of token t's label, or -1. */
static int64_t label_column(const int32_t *label, int64_t t, int64_t begin, int64_t columns)
{
    int64_t column = (int64_t)label[t] - begin;
    return column >= 0 && column < columns ? column : -1;
}

static void sum_task(void *context, int64_t t)
{
    const struct loss_sum *op = context;
    const float *x = f32_row(op->logits, t);
    float max = ((const float *)op->max.data)[t];
    int64_t n = op->columns, i = 0;
    vec sum[2] = {{0}};
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int s = 0; s < 2; s++) {
            vec_ahead(x + i + s * LANES);
            sum[s] += vec_exp(vec_load(x + i + s * LANES) - max);
        }
    for (int s = 0; s < 2; s++, i += LANES) { // constant bounds: unrolled, the sums stay in registers
        if (i >= n)
            break;
        int64_t count = min_i64(n - i, LANES);
        sum[s] += vec_first(vec_exp(vec_load_part(x + i, count) - max), count);
    }
    ((float *)op->sum.data)[t] = vec_sum(sum[0] + sum[1]);
    int64_t column = label_column(op->label, t, op->begin, n);
    ((float *)op->target.data)[t] = column >= 0 ? x[column] - max : 0.0F;
}

void cpu_loss_sum(struct device *device, const struct loss_sum *op)
{
    struct loss_sum args = *op;
    cpu_parallel(device, op->logits.dim[0], sum_task, &args);
}

void cpu_loss_finish(struct device *device, const struct loss_finish *op)
{
    (void)device; // some thousand logarithms
    const float *sum = op->sum.data, *target = op->target.data;
    int64_t batch = op->sample_loss.dim[0], sequence = op->sum.dim[0] / batch;
    for (int64_t b = 0; b < batch; b++) {
        double loss = 0.0, tokens = 0.0;
        for (int64_t t = b * sequence; t < (b + 1) * sequence; t++) {
            // A token that does not count may have no label anywhere, and so no finite loss.
            if (op->mask[t] == 0.0F)
                continue;
            loss += (double)op->mask[t] * (log((double)sum[t]) - (double)target[t]);
            tokens += (double)op->mask[t];
        }
        ((double *)op->sample_loss.data)[b] = loss;
        ((double *)op->sample_tokens.data)[b] = tokens;
    }
}

static void backward_task(void *context, int64_t t)
{
    const struct loss_backward *op = context;
    float *x = f32_row(op->logits, t), max = ((const float *)op->max.data)[t];
    float mask = op->mask[t], factor = mask / ((const float *)op->sum.data)[t];
    int64_t n = op->columns, i = 0;
    if (mask == 0.0F) {
        memset(x, 0, (size_t)op->logits.dim[1] * sizeof *x);
        return;
    }
    for (; i + LANES <= n; i += LANES) {
        vec_ahead(x + i);
        vec_store(x + i, vec_exp(vec_load(x + i) - max) * factor);
    }
    if (i < n)
        vec_store_part(x + i, vec_exp(vec_load_part(x + i, n - i) - max) * factor, n - i);
    int64_t column = label_column(op->label, t, op->begin, n);
    if (column >= 0)
        x[column] -= mask;
    memset(x + n, 0, (size_t)(op->logits.dim[1] - n) * sizeof *x);
}

void cpu_loss_backward(struct device *device, const struct loss_backward *op)
{
    struct loss_backward args = *op;
    cpu_parallel(device, op->logits.dim[0], backward_task, &args);
}
