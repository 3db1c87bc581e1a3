// SPDX-License-Identifier: Apache-2.0
/* The residual ops on eight neighbouring elements, for their own kernels (residual.cu) and for the fused
 * norms (norm.cu). Each element is read before it is written, by the same thread. */
#pragma once

#include "kernels/cuda/memory_bound/random.h"
#include "kernels/cuda/memory_bound/rows.h"

struct mask {
    bool drops;
    struct dropout_rule rule;
    const int64_t *sample;
    const int32_t *sample_offset;
    int64_t columns, column_begin;

    /* Dropout mask of columns [column, column + VECTOR_WIDTH) of a row, as bits: computed before the row is
     * loaded, it occupies one register meanwhile. */
    __device__ unsigned kept(int64_t row, int64_t column) const
    {
        if (!drops)
            return 0;
        uint64_t first = static_cast<uint64_t>(sample_offset[row]) * static_cast<uint64_t>(columns) +
                         static_cast<uint64_t>(column_begin + column);
        unsigned bits = 0;
        for (unsigned i = 0; i < VECTOR_WIDTH; i += 4) {
            float factor[4];
            dropout_quad(rule, static_cast<uint64_t>(sample[row]), first + i, factor);
            for (unsigned k = 0; k < 4; k++)
                bits |= factor[k] != 0.0F ? 1U << (i + k) : 0U;
        }
        return bits;
    }

    __device__ void apply(unsigned kept, vec<float> &q) const
    {
        if (!drops)
            return;
        UNROLL_ALL
        for (int i = 0; i < VECTOR_WIDTH; i++)
            q.at[i] *= (kept >> i & 1U) != 0 ? rule.scale : 0.0F;
    }
};

static inline struct mask mask_of(const struct dropout *dropout)
{
    if (dropout->probability == 0.0F)
        return {};
    return {true,
            dropout_rule_of(dropout),
            dropout->sample,
            dropout->sample_offset,
            dropout->columns,
            dropout->column_begin};
}

template <class T> struct add_residual {
    rows<T> x, bias, residual, out;
    struct mask mask;
    struct in {
        unsigned kept;
        vec<T> x, bias, residual;
    };

    template <bool WHOLE = false> __device__ in read(int64_t row, int64_t column, int64_t left) const
    {
        in p = {};
        p.kept = mask.kept(row, column);
        p.x = x.template read<WHOLE>(row, column, left);
        if (residual.data != nullptr)
            p.residual = residual.template read<WHOLE>(row, column, left);
        if (bias.data != nullptr)
            p.bias = bias.template read<WHOLE>(0, column, left);
        return p;
    }

    /* The sum of columns [column, column + VECTOR_WIDTH) of a row, as stored in `out`. */
    template <bool WHOLE = false>
    __device__ vec<T> write(const in &p, int64_t row, int64_t column, int64_t left) const
    {
        vec<float> q = rows<T>::widened(p.x);
        if (bias.data != nullptr) {
            const vec<float> b = rows<T>::widened(p.bias);
            for (int i = 0; i < VECTOR_WIDTH; i++)
                q.at[i] += b.at[i];
        }
        mask.apply(p.kept, q);
        if (residual.data != nullptr) {
            const vec<float> r = rows<T>::widened(p.residual);
            for (int i = 0; i < VECTOR_WIDTH; i++)
                q.at[i] += r.at[i];
        }
        const vec<T> sum = rows<T>::narrowed(q);
        out.template write<WHOLE>(row, column, left, sum);
        return sum;
    }

    bool are_whole(int64_t columns) const
    {
        return x.are_whole(columns) && bias.are_whole(columns) && residual.are_whole(columns) &&
               out.are_whole(columns);
    }
};

template <class T> static add_residual<T> add_residual_of(const struct residual_forward *op)
{
    return {rows_of<T>(op->x), rows_of<T>(op->bias), rows_of<T>(op->residual), rows_of<T>(op->out),
            mask_of(&op->dropout)};
}

/* No dropout, and in place: nothing to do. */
static inline bool residual_backward_is_done(const struct residual_backward *op)
{
    return op->dropout.probability == 0.0F && op->dx.data == op->dout.data;
}
