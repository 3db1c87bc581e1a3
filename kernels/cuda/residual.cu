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

    /* The factors of columns [column, column + EACH) of a row. */
    __device__ void factors(int64_t row, int64_t column, float factor[EACH]) const
    {
        uint64_t first = static_cast<uint64_t>(place[row]) * static_cast<uint64_t>(columns) +
                         static_cast<uint64_t>(column_begin + column);
        for (unsigned i = 0; i < EACH; i += 4)
            dropout_quad(rule, static_cast<uint64_t>(sample[row]), first + i, factor + i);
    }
};

static struct mask mask_of(const struct dropout *dropout)
{
    if (dropout->probability == 0.0F)
        return {};
    return {true,           dropout_rule_of(dropout), dropout->sample,
            dropout->place, dropout->columns,         dropout->column_begin};
}

template <class T> struct add_residual {
    rows<T> x, bias, residual, out;
    struct mask mask;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        piece<float> q = x.load(row, column, left);
        if (bias.data != nullptr) {
            piece<float> b = bias.load(0, column, left);
            for (int i = 0; i < EACH; i++)
                q.at[i] += b.at[i];
        }
        if (mask.drops) {
            float factor[EACH];
            mask.factors(row, column, factor);
            for (int i = 0; i < EACH; i++)
                q.at[i] *= factor[i];
        }
        if (residual.data != nullptr) {
            piece<float> r = residual.load(row, column, left);
            for (int i = 0; i < EACH; i++)
                q.at[i] += r.at[i];
        }
        out.store(row, column, left, q);
    }
};

enum status cuda_residual_forward(struct cuda_queue *queue, const struct residual_forward *op)
{
    return with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        add_residual<T> f = {rows_of<T>(op->x), rows_of<T>(op->bias), rows_of<T>(op->residual),
                             rows_of<T>(op->out), mask_of(&op->dropout)};
        return run_each_piece(queue, f, op->x.dim[0], op->x.dim[1]);
    });
}

enum status cuda_residual_backward(struct cuda_queue *queue, const struct residual_backward *op)
{
    if (op->dropout.probability == 0.0F && op->dx.data == op->dout.data)
        return OK;
    return with_type(op->dx.dtype, [=](auto number) {
        using T = decltype(number);
        add_residual<T> f = {rows_of<T>(op->dout), {}, {}, rows_of<T>(op->dx), mask_of(&op->dropout)};
        return run_each_piece(queue, f, op->dx.dim[0], op->dx.dim[1]);
    });
}
