// SPDX-License-Identifier: Apache-2.0
/* Cross entropy, one block per row; between the steps the caller reduces over ranks. */
#include "kernels/cuda/memory_bound/reduce.h"

#define LOG2_E 1.4426950408889634F

enum { THREADS = 256 };

template <class T> struct cap_logits {
    rows<T> x;
    float cap, inverse;
    using in = vec<T>;

    __device__ in read(int64_t row, int64_t column, int64_t left) const
    {
        return x.read(row, column, left);
    }

    __device__ void write(const in &p, int64_t row, int64_t column, int64_t left) const
    {
        vec<float> q = rows<T>::widened(p);
        for (int i = 0; i < VECTOR_WIDTH; i++)
            q.at[i] = tanhf(q.at[i] * inverse) * cap;
        x.store(row, column, left, q);
    }
};

enum status cuda_softcap(struct cuda_queue *queue, const struct softcap *op)
{
    return with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        cap_logits<T> f = {rows_of<T>(op->x), op->cap, 1.0F / op->cap};
        return run_each_two_vectors(queue, f, op->x.dim[0], op->x.dim[1]);
    });
}

template <class T> struct loss_rows {
    rows<T> logits;
    int64_t columns, begin;
    const int32_t *label;
    float *max, *sum, *target;
};

template <class T> __global__ void __launch_bounds__(THREADS) loss_row_max(loss_rows<T> op)
{
    const int64_t row = blockIdx.x;
    float max_logit = -INFINITY;
    walk_row(op.logits, row, op.columns, -INFINITY, [&](const vec<float> &q) {
        for (int i = 0; i < VECTOR_WIDTH; i++)
            max_logit = fmaxf(max_logit, q.at[i]);
    });
    max_logit = block_reduce(max_logit, larger(), -INFINITY);
    if (threadIdx.x == 0)
        op.max[row] = max_logit;
}

template <class T> __global__ void __launch_bounds__(THREADS) loss_row_sum(loss_rows<T> op)
{
    const int64_t row = blockIdx.x;
    const float max = op.max[row];
    float sum = 0.0F;
    walk_row(op.logits, row, op.columns, -INFINITY, [&](const vec<float> &q) {
        for (int i = 0; i < VECTOR_WIDTH; i++)
            sum += exp2_fast(LOG2_E * (q.at[i] - max)); // expf's instructions would take as long as memory
                                                        // access
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        const int64_t column = static_cast<int64_t>(op.label[row]) - op.begin;
        op.sum[row] = sum;
        op.target[row] =
            column >= 0 && column < op.columns ? op.logits.load(row, column, 1).at[0] - max : 0.0F;
    }
}

static int threads_of_row(int64_t columns)
{
    return threads_for(columns > 0 ? blocks_of(columns, VECTOR_WIDTH) : 1, THREADS);
}

static float *data_of(struct tensor t)
{
    return static_cast<float *>(t.data);
}

enum status cuda_loss_max(struct cuda_queue *queue, const struct loss_max *op)
{
    dim3 grid(static_cast<unsigned>(op->logits.dim[0]));
    return with_type(op->logits.dtype, [=](auto number) {
        using T = decltype(number);
        loss_rows<T> args = {rows_of<T>(op->logits), op->columns, 0,      nullptr,
                             data_of(op->max),       nullptr,     nullptr};
        return LAUNCH(queue, loss_row_max<T>, grid, threads_of_row(op->columns), 0, args);
    });
}

enum status cuda_loss_sum(struct cuda_queue *queue, const struct loss_sum *op)
{
    dim3 grid(static_cast<unsigned>(op->logits.dim[0]));
    return with_type(op->logits.dtype, [=](auto number) {
        using T = decltype(number);
        loss_rows<T> args = {rows_of<T>(op->logits), op->columns,      op->begin,          op->label,
                             data_of(op->max),       data_of(op->sum), data_of(op->target)};
        return LAUNCH(queue, loss_row_sum<T>, grid, threads_of_row(op->columns), 0, args);
    });
}

/* One block per sequence. A masked token may have no label on any rank, and so no finite loss. */
static __global__ void __launch_bounds__(THREADS)
    loss_of_samples(const float *sum, const float *target, const float *mask, int64_t sequence,
                    double *sample_loss, double *sample_tokens)
{
    const int64_t first = blockIdx.x * sequence;
    double loss = 0.0, tokens = 0.0;
    for (int64_t t = first + threadIdx.x; t < first + sequence; t += blockDim.x) {
        if (mask[t] == 0.0F)
            continue;
        loss += static_cast<double>(mask[t]) *
                (log(static_cast<double>(sum[t])) - static_cast<double>(target[t]));
        tokens += static_cast<double>(mask[t]);
    }
    loss = block_sum(loss);
    tokens = block_sum(tokens);
    if (threadIdx.x == 0) {
        sample_loss[blockIdx.x] = loss;
        sample_tokens[blockIdx.x] = tokens;
    }
}

enum status cuda_loss_finish(struct cuda_queue *queue, const struct loss_finish *op)
{
    const int64_t batch = op->sample_loss.dim[0], sequence = op->sum.dim[0] / batch;
    return LAUNCH(queue, loss_of_samples, dim3(static_cast<unsigned>(batch)), threads_for(sequence, THREADS),
                  0, data_of(op->sum), data_of(op->target), op->mask, sequence,
                  static_cast<double *>(op->sample_loss.data), static_cast<double *>(op->sample_tokens.data));
}

template <class T> struct loss_gradient {
    rows<T> logits;
    const float *max, *sum, *mask;
    const int32_t *label;
    int64_t begin, columns;
    const float *scale;
    float to_cap; // 1 / the soft cap; 0: none
    using in = vec<T>;

    __device__ in read(int64_t row, int64_t column, int64_t left) const
    {
        return logits.read(row, column, left);
    }

    /* The gradient of a masked token is 0. Few vectors contain a target or the end of a row. */
    __device__ void write(const in &p, int64_t row, int64_t column, int64_t left) const
    {
        const float weight = scale != nullptr ? mask[row] * *scale : mask[row];
        const bool counts = weight != 0.0F;
        const float factor = counts ? weight / sum[row] : 0.0F, max_logit = counts ? max[row] : 0.0F;
        const int64_t at = static_cast<int64_t>(label[row]) - begin - column,
                      real = counts ? columns - column : 0;
        vec<float> q = rows<T>::widened(p);
        if (real < VECTOR_WIDTH)
            for (int i = 0; i < VECTOR_WIDTH; i++)
                q.at[i] = i < real ? q.at[i] : -INFINITY;
        vec<float> g;
        for (int i = 0; i < VECTOR_WIDTH; i++)
            g.at[i] = expf(q.at[i] - max_logit) * factor;
        if (at >= 0 && at < VECTOR_WIDTH && at < real)
            for (int i = 0; i < VECTOR_WIDTH; i++)
                g.at[i] -= i == at ? weight : 0.0F;
        if (to_cap > 0.0F)
            for (int i = 0; i < VECTOR_WIDTH;
                 i++) // columns that are not real have gradient 0, and no capped logit
                g.at[i] *= i < real ? fmaf(-to_cap * q.at[i], to_cap * q.at[i], 1.0F) : 0.0F;
        logits.store(row, column, left, g);
    }
};

enum status cuda_loss_backward(struct cuda_queue *queue, const struct loss_backward *op)
{
    return with_type(op->logits.dtype, [=](auto number) {
        using T = decltype(number);
        loss_gradient<T> f = {rows_of<T>(op->logits),
                              data_of(op->max),
                              data_of(op->sum),
                              op->mask,
                              op->label,
                              op->begin,
                              op->columns,
                              op->scale,
                              op->softcap > 0.0F ? 1.0F / op->softcap : 0.0F};
        return run_each_two_vectors(queue, f, op->logits.dim[0], op->logits.dim[1]);
    });
}
