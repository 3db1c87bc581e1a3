// SPDX-License-Identifier: Apache-2.0
/* out = residual + dropout(x + bias), in one pass, and its way back.
 *
 * The mask of a row begins at element place * columns + column_begin, which need not be the first of a
 * Philox counter; the row is walked in the blocks of 64 elements that the generator makes, the first and
 * the last of them perhaps cut. An element's factor is the definition's, whatever the slice. */
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/rows.h"

/* The factors of a row's first n elements. */
static void mask_row(const struct dropout *dropout, const struct dropout_rule *rule, int64_t t, int64_t n,
                     float *factor)
{
    uint64_t first =
        (uint64_t)dropout->place[t] * (uint64_t)dropout->columns + (uint64_t)dropout->column_begin;
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

/* Columns at a time, so that the factors lie on the stack. A multiple of DROPOUT_BLOCK. */
enum { PIECE = 1024 };

/* The factors of columns [begin, begin + n) of row t. */
static void mask_piece(const struct dropout *dropout, const struct dropout_rule *rule, int64_t t,
                       int64_t begin, int64_t n, float *factor)
{
    struct dropout shifted = *dropout;
    shifted.column_begin += begin;
    mask_row(&shifted, rule, t, n, factor);
}

/* `bias`, `factor` and `residual` may be NULL. out may be x or residual: an element is read before it is
 * written, and no other one is. */
static void forward_piece(const float *x, const float *bias, const float *factor, const float *residual,
                          float *out, int64_t n)
{
    float piece[PIECE];
    for (int64_t i = 0; i < n; i++)
        piece[i] = x[i];
    for (int64_t i = 0; bias != NULL && i < n; i++)
        piece[i] += bias[i];
    for (int64_t i = 0; factor != NULL && i < n; i++)
        piece[i] *= factor[i];
    for (int64_t i = 0; residual != NULL && i < n; i++)
        piece[i] += residual[i];
    memcpy(out, piece, (size_t)n * sizeof *out);
}

static void forward_task(void *context, int64_t task)
{
    const struct residual_forward *op = context;
    struct dropout_rule rule = dropout_rule(&op->dropout);
    bool drops = op->dropout.probability > 0.0F;
    int64_t columns = op->out.dim[1], each = rows_each_task(columns);
    int64_t end = min_i64((task + 1) * each, op->out.dim[0]);
    for (int64_t t = task * each; t < end; t++) {
        const float *residual = op->residual.data != NULL ? f32_row(op->residual, t) : NULL;
        for (int64_t c = 0; c < columns; c += PIECE) {
            int64_t n = min_i64(PIECE, columns - c);
            float factor[PIECE];
            if (drops)
                mask_piece(&op->dropout, &rule, t, c, n, factor);
            forward_piece(
                f32_row(op->x, t) + c, op->bias.data != NULL ? (const float *)op->bias.data + c : NULL,
                drops ? factor : NULL, residual != NULL ? residual + c : NULL, f32_row(op->out, t) + c, n);
        }
    }
}

static void backward_task(void *context, int64_t task)
{
    const struct residual_backward *op = context;
    struct dropout_rule rule = dropout_rule(&op->dropout);
    bool drops = op->dropout.probability > 0.0F;
    int64_t columns = op->dx.dim[1], each = rows_each_task(columns);
    int64_t end = min_i64((task + 1) * each, op->dx.dim[0]);
    for (int64_t t = task * each; t < end; t++) {
        for (int64_t c = 0; c < columns; c += PIECE) {
            int64_t n = min_i64(PIECE, columns - c);
            float factor[PIECE];
            if (drops)
                mask_piece(&op->dropout, &rule, t, c, n, factor);
            forward_piece(f32_row(op->dout, t) + c, NULL, drops ? factor : NULL, NULL, f32_row(op->dx, t) + c,
                          n);
        }
    }
}

void cpu_residual_forward(struct device *device, const struct residual_forward *op)
{
    struct residual_forward args = *op;
    cpu_parallel(device, blocks_of(op->out.dim[0], rows_each_task(op->out.dim[1])), forward_task, &args);
}

void cpu_residual_backward(struct device *device, const struct residual_backward *op)
{
    if (op->dropout.probability == 0.0F && op->dx.data == op->dout.data)
        return;
    struct residual_backward args = *op;
    cpu_parallel(device, blocks_of(op->dx.dim[0], rows_each_task(op->dx.dim[1])), backward_task, &args);
}
