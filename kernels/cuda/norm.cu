// SPDX-License-Identifier: Apache-2.0
/* LayerNorm and RMSNorm: a block for each row, which reads it as often as it needs to (the second time from
 * the cache). Mean and variance are each taken plainly, in two passes.
 *
 *     dx += rstd * (g - mean(g) - xhat * mean(g * xhat)),   g = dy * weight, xhat = (x - mean) * rstd
 *
 * The weights' gradients are sums over rows and take a kernel of their own (reduce.h). */
#include "kernels/cuda/reduce.h"

enum { THREADS = 256 };

template <class T> struct norm_rows {
    bool layer;
    int64_t columns;
    rows<T> x, weight, bias, y;
    float epsilon;
    float *mean, *rstd;
};

template <class T> __global__ void __launch_bounds__(THREADS) norm_forward_rows(norm_rows<T> op)
{
    const int64_t row = blockIdx.x, n = op.columns, first = EACH * threadIdx.x, stride = EACH * blockDim.x;
    float mean = 0.0F, sum = 0.0F;
    if (op.layer) {
        for (int64_t c = first; c < n; c += stride) {
            const piece<float> q = op.x.load(row, c, n - c);
            for (int i = 0; i < EACH; i++)
                sum += q.at[i];
        }
        mean = block_sum(sum) / static_cast<float>(n);
    }
    sum = 0.0F;
    for (int64_t c = first; c < n; c += stride) {
        piece<float> q = op.x.load(row, c, n - c, mean);
        for (int i = 0; i < EACH; i++)
            sum = fmaf(q.at[i] - mean, q.at[i] - mean, sum);
    }
    const float rstd = 1.0F / sqrtf(block_sum(sum) / static_cast<float>(n) + op.epsilon);
    for (int64_t c = first; c < n; c += stride) {
        piece<float> q = op.x.load(row, c, n - c), w = op.weight.load(0, c, n - c), b = {};
        if (op.layer)
            b = op.bias.load(0, c, n - c);
        for (int i = 0; i < EACH; i++)
            q.at[i] = (q.at[i] - mean) * rstd * w.at[i] + b.at[i];
        op.y.store(row, c, n - c, q);
    }
    if (threadIdx.x == 0) {
        op.rstd[row] = rstd;
        if (op.layer)
            op.mean[row] = mean;
    }
}

static int threads_of_row(int64_t columns)
{
    return threads_for(blocks_of(columns, EACH), THREADS);
}

enum status cuda_norm_forward(struct cuda_queue *queue, const struct norm_forward *op)
{
    return with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        norm_rows<T> args = {op->kind == NORM_LAYER,
                             op->x.dim[1],
                             rows_of<T>(op->x),
                             rows_of<T>(op->weight),
                             rows_of<T>(op->bias),
                             rows_of<T>(op->y),
                             op->epsilon,
                             static_cast<float *>(op->mean.data),
                             static_cast<float *>(op->rstd.data)};
        dim3 grid(static_cast<unsigned>(op->x.dim[0]));
        return LAUNCH(queue, norm_forward_rows<T>, grid, threads_of_row(op->x.dim[1]), 0, args);
    });
}

template <class T> struct norm_back {
    bool layer;
    int64_t columns;
    rows<T> dy, x, weight, dx;
    const float *mean, *rstd;
};

template <class T> __global__ void __launch_bounds__(THREADS) norm_backward_rows(norm_back<T> op)
{
    const int64_t row = blockIdx.x, n = op.columns, first = EACH * threadIdx.x, stride = EACH * blockDim.x;
    const float mean = op.layer ? op.mean[row] : 0.0F, rstd = op.rstd[row];
    float g_sum = 0.0F, product_sum = 0.0F;
    for (int64_t c = first; c < n; c += stride) {
        piece<float> x = op.x.load(row, c, n - c), g = op.dy.load(row, c, n - c),
                     w = op.weight.load(0, c, n - c);
        for (int i = 0; i < EACH; i++) {
            g_sum += g.at[i] * w.at[i];
            product_sum = fmaf(g.at[i] * w.at[i], (x.at[i] - mean) * rstd, product_sum);
        }
    }
    const float g_mean = op.layer ? block_sum(g_sum) / static_cast<float>(n) : 0.0F;
    const float product_mean = block_sum(product_sum) / static_cast<float>(n);
    for (int64_t c = first; c < n; c += stride) {
        piece<float> x = op.x.load(row, c, n - c), g = op.dy.load(row, c, n - c),
                     w = op.weight.load(0, c, n - c);
        piece<float> dx = op.dx.load(row, c, n - c);
        for (int i = 0; i < EACH; i++) {
            float xhat = (x.at[i] - mean) * rstd;
            dx.at[i] += rstd * (g.at[i] * w.at[i] - g_mean - xhat * product_mean);
        }
        op.dx.store(row, c, n - c, dx);
    }
}

template <class T> struct norm_weight_sums {
    static constexpr int SUMS = 2; // dweight, dbias
    struct row {
        piece<T> x, dy;
        float mean, rstd;
    };
    norm_back<T> op;

    __device__ row read(int64_t r, int64_t column, int64_t left) const
    {
        return {op.x.read(r, column, left), op.dy.read(r, column, left), op.layer ? op.mean[r] : 0.0F,
                op.rstd[r]};
    }

    __device__ void add(const row &from, piece<float> *sum) const
    {
        const piece<float> x = rows<T>::widened(from.x), g = rows<T>::widened(from.dy);
        for (int i = 0; i < EACH; i++) {
            sum[0].at[i] += g.at[i] * ((x.at[i] - from.mean) * from.rstd);
            sum[1].at[i] += g.at[i];
        }
    }
};

template <class T> static enum status backward(struct cuda_queue *queue, const struct norm_backward *op)
{
    norm_back<T> args = {op->kind == NORM_LAYER,
                         op->x.dim[1],
                         rows_of<T>(op->dy),
                         rows_of<T>(op->x),
                         rows_of<T>(op->weight),
                         rows_of<T>(op->dx),
                         static_cast<const float *>(op->mean.data),
                         static_cast<const float *>(op->rstd.data)};
    int64_t row_count = op->x.dim[0], columns = op->x.dim[1];
    // First the sums: dx may be dy.
    float *const out[] = {static_cast<float *>(op->dweight.data), static_cast<float *>(op->dbias.data)};
    TRY(run_sum_rows(queue, norm_weight_sums<T>{args}, row_count, columns, out, false));
    return LAUNCH(queue, norm_backward_rows<T>, dim3(static_cast<unsigned>(row_count)),
                  threads_of_row(columns), 0, args);
}

enum status cuda_norm_backward(struct cuda_queue *queue, const struct norm_backward *op)
{
    return with_type(op->x.dtype, [=](auto number) { return backward<decltype(number)>(queue, op); });
}
