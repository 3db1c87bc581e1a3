// SPDX-License-Identifier: Apache-2.0
/* out = residual + dropout(x + bias), in one pass, and its backward pass.
 *
 * The mask of a row begins at element sample_offset * columns + column_begin, which need not be the first of
 * a Philox counter; the row is processed in the generator's blocks of 64 elements, the first and last
 * possibly partial. An element's factor does not depend on the slice. */
#include "kernels/cpu/memory_bound/residual.h"

#include "kernels/cpu/rows.h"

/* The factors of a row's first n elements. */
static void mask_row(const struct dropout *dropout, const struct dropout_rule *rule, int64_t t, int64_t n,
                     float *factor)
{
    uint64_t first =
        (uint64_t)dropout->sample_offset[t] * (uint64_t)dropout->columns + (uint64_t)dropout->column_begin;
    uint64_t end = first + (uint64_t)n;
    for (uint64_t block = first / DROPOUT_BLOCK; block * DROPOUT_BLOCK < end; block++) {
        uint64_t begin = block * DROPOUT_BLOCK, from = begin < first ? first - begin : 0;
        uint64_t to = end - begin < DROPOUT_BLOCK ? end - begin : DROPOUT_BLOCK;
        float whole[DROPOUT_BLOCK];
        if (from == 0 && to == DROPOUT_BLOCK) {
            dropout_block(rule, (uint64_t)dropout->sample[t], block, factor + (begin - first));
        } else {
            dropout_block(rule, (uint64_t)dropout->sample[t], block, whole);
            for (uint64_t i = from; i < to; i++)
                factor[begin + i - first] = whole[i];
        }
    }
}

/* The factors of a segment; NULL without dropout. */
static const float *mask_segment(const struct dropout *dropout, const struct dropout_rule *rule,
                                 struct segment p, float *factor)
{
    if (!(dropout->probability > 0.0F))
        return NULL;
    struct dropout shifted = *dropout;
    shifted.column_begin += p.column;
    mask_row(&shifted, rule, p.row, p.count, factor);
    return factor;
}

/* The next segment, at most SEGMENT_ELEMENTS columns for any type, since the factors are on the stack. A
 * multiple of DROPOUT_BLOCK. */
static struct segment segment_from(struct tensor t, int64_t row, int64_t column)
{
    return (struct segment){row, column, min_i64(SEGMENT_ELEMENTS, t.dim[1] - column)};
}

/* `bias`, `factor` and `residual` may be NULL. out may alias x or residual: each element is read before it is
 * written, and no other element is accessed. */
static void forward_segment(struct tensor to, struct segment p, const float *x, const float *bias,
                            const float *factor, const float *residual)
{
    float sum[SEGMENT_ELEMENTS];
    int64_t n = p.count;
    for (int64_t i = 0; i < n; i++)
        sum[i] = x[i];
    for (int64_t i = 0; bias != NULL && i < n; i++)
        sum[i] += bias[i];
    for (int64_t i = 0; factor != NULL && i < n; i++)
        sum[i] *= factor[i];
    for (int64_t i = 0; residual != NULL && i < n; i++)
        sum[i] += residual[i];
    narrow_floats(to.dtype, sum, row_bytes(to, p.row, p.column), n);
}

void residual_forward_row(const struct residual_forward *op, const struct dropout_rule *rule, int64_t t)
{
    for (int64_t c = 0; c < op->out.dim[1]; c += SEGMENT_ELEMENTS) {
        struct segment p = segment_from(op->out, t, c);
        float buffer[3][SEGMENT_ELEMENTS], factor[SEGMENT_ELEMENTS];
        const float *bias = op->bias.data != NULL ? row_in(op->bias, segment_of_vector(p), buffer[1]) : NULL;
        const float *residual = op->residual.data != NULL ? row_in(op->residual, p, buffer[2]) : NULL;
        forward_segment(op->out, p, row_in(op->x, p, buffer[0]), bias,
                        mask_segment(&op->dropout, rule, p, factor), residual);
    }
}

void residual_backward_row(const struct residual_backward *op, const struct dropout_rule *rule, int64_t t)
{
    for (int64_t c = 0; c < op->dx.dim[1]; c += SEGMENT_ELEMENTS) {
        struct segment p = segment_from(op->dx, t, c);
        float buffer[SEGMENT_ELEMENTS], factor[SEGMENT_ELEMENTS];
        forward_segment(op->dx, p, row_in(op->dout, p, buffer), NULL,
                        mask_segment(&op->dropout, rule, p, factor), NULL);
    }
}

static void forward_task(void *context, int64_t task)
{
    const struct residual_forward *op = context;
    struct dropout_rule rule = dropout_rule(&op->dropout);
    int64_t each = rows_each_task(op->out.dim[1]), end = min_i64((task + 1) * each, op->out.dim[0]);
    for (int64_t t = task * each; t < end; t++)
        residual_forward_row(op, &rule, t);
}

static void backward_task(void *context, int64_t task)
{
    const struct residual_backward *op = context;
    struct dropout_rule rule = dropout_rule(&op->dropout);
    int64_t each = rows_each_task(op->dx.dim[1]), end = min_i64((task + 1) * each, op->dx.dim[0]);
    for (int64_t t = task * each; t < end; t++)
        residual_backward_row(op, &rule, t);
}

void cpu_residual_forward(struct device *device, const struct residual_forward *op)
{
    struct residual_forward args = *op;
    cpu_parallel(device, blocks_of(op->out.dim[0], rows_each_task(op->out.dim[1])), forward_task, &args);
}

void cpu_residual_backward(struct device *device, const struct residual_backward *op)
{
    if (residual_backward_is_done(op))
        return;
    struct residual_backward args = *op;
    cpu_parallel(device, blocks_of(op->dx.dim[0], rows_each_task(op->dx.dim[1])), backward_task, &args);
}
