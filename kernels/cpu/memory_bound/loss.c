// SPDX-License-Identifier: Apache-2.0
/* Cross entropy, one row per task: a row of GPT-2's logits is 200 KB, which fits in the L2 cache. Each step
 * reads the logits once; between the steps the caller reduces over ranks. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

/* The valid columns of row t. */
static struct segment first_valid(struct tensor logits, int64_t columns, int64_t t)
{
    return segment_at(logits.dtype, columns, t, 0);
}

static struct segment next_valid(struct tensor logits, int64_t columns, struct segment p)
{
    return segment_at(logits.dtype, columns, p.row, p.column + p.count);
}

static void max_task(void *context, int64_t t)
{
    const struct loss_max *op = context;
    const float *x = NULL;
    float buffer[SEGMENT_ELEMENTS];
    int64_t i = 0, n = 0;
    vec lane_max[4];
    for (int s = 0; s < 4; s++)
        lane_max[s] = vec_all(-INFINITY);
    for (struct segment p = first_valid(op->logits, op->columns, t); p.count > 0;
         p = next_valid(op->logits, op->columns, p)) {
        x = row_in(op->logits, p, buffer);
        n = p.count;
        for (i = 0; i + 4 * LANES <= n; i += 4 * LANES)
            for (int s = 0; s < 4; s++) {
                vec_ahead(x + i + s * LANES);
                lane_max[s] = vec_max(lane_max[s], vec_load(x + i + s * LANES));
            }
    }
    float max = vec_largest(vec_max(vec_max(lane_max[0], lane_max[1]), vec_max(lane_max[2], lane_max[3])));
    for (; i < n; i++) // tail of the last segment; the others are full
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

/* Adds e^(x - max) of a segment to the running sums. */
static void add_exponentials(const float *x, int64_t n, float max, vec total[2])
{
    vec sum[2] = {total[0], total[1]};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int s = 0; s < 2; s++) {
            vec_ahead(x + i + s * LANES);
            sum[s] += vec_exp(vec_load(x + i + s * LANES) - max);
        }
    for (int s = 0; s < 2; s++, i += LANES) { // constant bounds: when unrolled, the sums stay in registers
        if (i >= n)
            break;
        int64_t count = min_i64(n - i, LANES);
        sum[s] += vec_first(vec_exp(vec_load_part(x + i, count) - max), count);
    }
    memcpy(total, sum, sizeof sum);
}

static void sum_task(void *context, int64_t t)
{
    const struct loss_sum *op = context;
    float buffer[SEGMENT_ELEMENTS], max = ((const float *)op->max.data)[t];
    vec sum[2] = {{0}};
    for (struct segment p = first_valid(op->logits, op->columns, t); p.count > 0;
         p = next_valid(op->logits, op->columns, p))
        add_exponentials(row_in(op->logits, p, buffer), p.count, max, sum);
    ((float *)op->sum.data)[t] = vec_sum(sum[0] + sum[1]);
    int64_t column = label_column(op->label, t, op->begin, op->columns);
    ((float *)op->target.data)[t] = column >= 0 ? row_value(op->logits, t, column) - max : 0.0F;
}

void cpu_loss_sum(struct device *device, const struct loss_sum *op)
{
    struct loss_sum args = *op;
    cpu_parallel(device, op->logits.dim[0], sum_task, &args);
}

void cpu_loss_finish(struct device *device, const struct loss_finish *op)
{
    (void)device; // only a few thousand logarithms
    const float *sum = op->sum.data, *target = op->target.data;
    int64_t batch = op->sample_loss.dim[0], sequence = op->sum.dim[0] / batch;
    for (int64_t b = 0; b < batch; b++) {
        double loss = 0.0, tokens = 0.0;
        for (int64_t t = b * sequence; t < (b + 1) * sequence; t++) {
            // A masked token may have no label on any rank, and so no finite loss.
            if (op->mask[t] == 0.0F)
                continue;
            loss += (double)op->mask[t] * (log((double)sum[t]) - (double)target[t]);
            tokens += (double)op->mask[t];
        }
        ((double *)op->sample_loss.data)[b] = loss;
        ((double *)op->sample_tokens.data)[b] = tokens;
    }
}

static void backward_segment(float *x, int64_t n, float max, float factor)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec_ahead(x + i);
        vec_store(x + i, vec_exp(vec_load(x + i) - max) * factor);
    }
    if (i < n)
        vec_store_part(x + i, vec_exp(vec_load_part(x + i, n - i) - max) * factor, n - i);
}

static void zero_columns(struct tensor t, int64_t row, int64_t begin)
{
    memset(row_bytes(t, row, begin), 0, (size_t)(t.dim[1] - begin) * dtype_bytes(t.dtype));
}

static void backward_task(void *context, int64_t t)
{
    const struct loss_backward *op = context;
    float max = ((const float *)op->max.data)[t], mask = op->mask[t];
    float weight = op->scale != NULL ? mask * *op->scale : mask,
          factor = weight / ((const float *)op->sum.data)[t];
    int64_t label = label_column(op->label, t, op->begin, op->columns);
    if (mask == 0.0F) {
        zero_columns(op->logits, t, 0);
        return;
    }
    for (struct segment p = first_valid(op->logits, op->columns, t); p.count > 0;
         p = next_valid(op->logits, op->columns, p)) {
        float buffer[SEGMENT_ELEMENTS], *x = row_in(op->logits, p, buffer);
        backward_segment(x, p.count, max, factor);
        if (label >= p.column && label < p.column + p.count)
            x[label - p.column] -= weight;
        row_store(op->logits, p, x);
    }
    zero_columns(op->logits, t, op->columns);
}

void cpu_loss_backward(struct device *device, const struct loss_backward *op)
{
    struct loss_backward args = *op;
    cpu_parallel(device, op->logits.dim[0], backward_task, &args);
}
