// SPDX-License-Identifier: Apache-2.0
/* Cross entropy, one row per task: a row of GPT-2's logits is 200 KB, which fits in the L2 cache. Each step
 * reads the logits once; between the steps the caller reduces over ranks. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

static void softcap_row(void *context, int64_t t)
{
    const struct softcap *op = context;
    const float inverse = 1.0F / op->cap;
    float buffer[SEGMENT_ELEMENTS];
    for (struct segment p = segment_first(op->x, t); p.count > 0; p = segment_next(op->x, p)) {
        float *x = row_in(op->x, p, buffer);
        int64_t i = 0;
        for (; i + LANES <= p.count; i += LANES) {
            vec_ahead(x + i);
            vec_store(x + i, vec_tanh(vec_load(x + i) * inverse) * op->cap);
        }
        if (i < p.count)
            vec_store_part(x + i, vec_tanh(vec_load_part(x + i, p.count - i) * inverse) * op->cap,
                           p.count - i);
        row_store(op->x, p, x);
    }
}

void cpu_softcap(struct device *device, const struct softcap *op)
{
    struct softcap args = *op;
    cpu_parallel(device, op->x.dim[0], softcap_row, &args);
}

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

/* What the gradients of a row have in common. */
struct row_gradient {
    float max, factor, to_cap; // to_cap: 1 / the soft cap; 0: none
};

VECTOR_INLINE vec gradient_lanes(const struct row_gradient *g, vec x)
{
    vec dx = vec_exp(x - g->max) * g->factor, t = x * g->to_cap;
    return g->to_cap > 0.0F ? dx * (1.0F - t * t) : dx;
}

static void backward_segment(const struct row_gradient *g, float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec_ahead(x + i);
        vec_store(x + i, gradient_lanes(g, vec_load(x + i)));
    }
    if (i < n)
        vec_store_part(x + i, gradient_lanes(g, vec_load_part(x + i, n - i)), n - i);
}

static void zero_columns(struct tensor t, int64_t row, int64_t begin)
{
    memset(row_bytes(t, row, begin), 0, (size_t)(t.dim[1] - begin) * dtype_bytes(t.dtype));
}

static void backward_task(void *context, int64_t t)
{
    const struct loss_backward *op = context;
    float mask = op->mask[t], weight = op->scale != NULL ? mask * *op->scale : mask;
    const struct row_gradient g = {.max = ((const float *)op->max.data)[t],
                                   .factor = weight / ((const float *)op->sum.data)[t],
                                   .to_cap = op->softcap > 0.0F ? 1.0F / op->softcap : 0.0F};
    int64_t label = label_column(op->label, t, op->begin, op->columns);
    float capped = g.to_cap > 0.0F && label >= 0 ? row_value(op->logits, t, label) * g.to_cap : 0.0F;
    if (mask == 0.0F) {
        zero_columns(op->logits, t, 0);
        return;
    }
    for (struct segment p = first_valid(op->logits, op->columns, t); p.count > 0;
         p = next_valid(op->logits, op->columns, p)) {
        float buffer[SEGMENT_ELEMENTS], *x = row_in(op->logits, p, buffer);
        backward_segment(&g, x, p.count);
        if (label >= p.column && label < p.column + p.count)
            x[label - p.column] -= weight * (1.0F - capped * capped);
        row_store(op->logits, p, x);
    }
    zero_columns(op->logits, t, op->columns);
}

void cpu_loss_backward(struct device *device, const struct loss_backward *op)
{
    struct loss_backward args = *op;
    cpu_parallel(device, op->logits.dim[0], backward_task, &args);
}
