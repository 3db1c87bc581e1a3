// SPDX-License-Identifier: Apache-2.0
/* out = residual + dropout(x + bias), in one pass, and its way back. An element is read before it is written,
 * by the same thread, so out may be x or residual. */
#include "kernels/cuda/random.h"
#include "kernels/cuda/rows.h"

struct mask {
    bool drops;
    struct dropout_rule rule;
    const int64_t *sample;
    const int32_t *place;
    int64_t columns, column_begin;

    /* The factors of columns [column, column + 4) of a row. */
    __device__ void factors(int64_t row, int64_t column, float factor[4]) const
    {
        uint64_t first = static_cast<uint64_t>(place[row]) * static_cast<uint64_t>(columns) +
                         static_cast<uint64_t>(column_begin + column);
        dropout_quad(rule, static_cast<uint64_t>(sample[row]), first, factor);
    }
};

static struct mask mask_of(const struct dropout *dropout)
{
    if (dropout->probability == 0.0F)
        return {};
    return {true,           dropout_rule_of(dropout), dropout->sample,
            dropout->place, dropout->columns,         dropout->column_begin};
}

struct add_residual {
    rows<float> x, bias, residual, out;
    struct mask mask;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        quad<float> q = x.load(row, column, left);
        if (bias.data != nullptr) {
            quad<float> b = bias.load(0, column, left);
            for (int i = 0; i < 4; i++)
                q.at[i] += b.at[i];
        }
        if (mask.drops) {
            float factor[4];
            mask.factors(row, column, factor);
            for (int i = 0; i < 4; i++)
                q.at[i] *= factor[i];
        }
        if (residual.data != nullptr) {
            quad<float> r = residual.load(row, column, left);
            for (int i = 0; i < 4; i++)
                q.at[i] += r.at[i];
        }
        out.store(row, column, left, q);
    }
};

enum status cuda_residual_forward(struct cuda_queue *queue, const struct residual_forward *op)
{
    add_residual f = {floats(op->x), floats(op->bias), floats(op->residual), floats(op->out),
                      mask_of(&op->dropout)};
    return run_each_quad(queue, f, op->x.dim[0], op->x.dim[1]);
}

enum status cuda_residual_backward(struct cuda_queue *queue, const struct residual_backward *op)
{
    if (op->dropout.probability == 0.0F && op->dx.data == op->dout.data)
        return OK;
    add_residual f = {floats(op->dout), {}, {}, floats(op->dx), mask_of(&op->dropout)};
    return run_each_quad(queue, f, op->dx.dim[0], op->dx.dim[1]);
}
