// SPDX-License-Identifier: Apache-2.0
/* LayerNorm and RMSNorm, alone and fused with the residual op, in one kernel per direction.
 *
 * A block handles a row, a thread eight columns of it, in registers; only rows of more than 8 x THREADS
 * columns have further columns, which are read again (from cache). Mean and variance are computed in two
 * passes over the registers.
 *
 *     dx = dresidual + rstd * (g - mean(g) - xhat * mean(g * xhat)),
 *     g = dy * weight,  xhat = (x - mean) * rstd
 *
 * Backward, a block processes NORM_ROW_BLOCK rows and accumulates their contributions to the weight gradients
 * in the same pass: a separate pass would read dy and x, half of all bytes, again. */
#include "kernels/cuda/memory_bound/reduce.h"
#include "kernels/cuda/memory_bound/residual.h"

enum { THREADS = 1024 };

static int threads_of_row(int64_t columns)
{
    return threads_for(blocks_of(columns, VECTOR_WIDTH), THREADS);
}

template <class T> struct norm_rows {
    bool layer;
    int64_t row_count, columns;
    rows<T> x, weight, bias, y;
    float epsilon;
    float *mean, *rstd;
};

/* A block handles two rows at once, so that its threads have enough loads in flight; or one, if each
 * thread has several vectors. ADDS: x is computed by `before`. FITS: a row is one 16-byte aligned vector per
 * thread. */
template <bool ADDS> constexpr int rows_at_once = ADDS ? 1 : 2;

template <class T, bool FITS>
__device__ void write_normal(const norm_rows<T> &op, int64_t row, int64_t column, float mean, float rstd,
                             const vec<float> &w, const vec<float> &b, vec<float> x)
{
    for (int i = 0; i < VECTOR_WIDTH; i++)
        x.at[i] = (x.at[i] - mean) * rstd * w.at[i] + b.at[i];
    op.y.template store<FITS>(row, column, op.columns - column, x);
}

template <class T, bool ADDS, bool FITS>
__global__ void __launch_bounds__(THREADS) norm_fwd(norm_rows<T> op, add_residual<T> before)
{
    constexpr int ROWS = rows_at_once<ADDS>;
    const int64_t row = ROWS * static_cast<int64_t>(blockIdx.x), n = op.columns,
                  first = VECTOR_WIDTH * threadIdx.x, stride = FITS ? n : VECTOR_WIDTH * blockDim.x;
    const int count = op.row_count - row < ROWS ? 1 : ROWS;
    vec<T> held[ROWS] = {};
    const auto x = [&](int k, int64_t c) {
        return rows<T>::widened(FITS || c == first ? held[k] : op.x.read(row + k, c, n - c));
    };
    float sum[ROWS] = {}, mean[ROWS], rstd[ROWS];
    for (int64_t c = first; c < n; c += stride) {
        vec<T> in[ROWS] = {};
        UNROLL_ALL
        for (int k = 0; k < ROWS && k < count; k++)
            in[k] =
                ADDS ? before.template write<FITS>(before.template read<FITS>(row, c, n - c), row, c, n - c)
                     : op.x.template read<FITS>(row + k, c, n - c);
        UNROLL_ALL
        for (int k = 0; k < ROWS; k++) {
            held[k] = c == first ? in[k] : held[k];
            const vec<float> q = rows<T>::widened(in[k]);
            for (int i = 0; i < VECTOR_WIDTH; i++)
                sum[k] += FITS || i < n - c ? q.at[i] : 0.0F;
        }
    }
    if (op.layer)
        block_sums<ROWS>(sum);
    UNROLL_ALL
    for (int k = 0; k < ROWS; k++) {
        mean[k] = op.layer ? sum[k] / static_cast<float>(n) : 0.0F;
        sum[k] = 0.0F;
        for (int64_t c = first; c < n && k < count; c += stride) {
            const vec<float> q = x(k, c);
            for (int i = 0; i < VECTOR_WIDTH; i++)
                sum[k] = FITS || i < n - c ? fmaf(q.at[i] - mean[k], q.at[i] - mean[k], sum[k]) : sum[k];
        }
    }
    block_sums<ROWS>(sum);
    UNROLL_ALL
    for (int k = 0; k < ROWS; k++) {
        rstd[k] = 1.0F / sqrtf(sum[k] / static_cast<float>(n) + op.epsilon);
        if (threadIdx.x == 0 && k < count)
            op.rstd[row + k] = rstd[k];
        if (threadIdx.x == 0 && k < count && op.layer)
            op.mean[row + k] = mean[k];
    }
    for (int64_t c = first; c < n; c += stride) {
        vec<float> w = op.weight.template load<FITS>(0, c, n - c), b = {};
        if (op.layer)
            b = op.bias.template load<FITS>(0, c, n - c);
        UNROLL_ALL
        for (int k = 0; k < ROWS && k < count; k++)
            write_normal<T, FITS>(op, row + k, c, mean[k], rstd[k], w, b, x(k, c));
    }
}

template <class T> static norm_rows<T> norm_rows_of(const struct norm_forward *op)
{
    return {op->kind == NORM_LAYER,
            op->x.dim[0],
            op->x.dim[1],
            rows_of<T>(op->x),
            rows_of<T>(op->weight),
            rows_of<T>(op->bias),
            rows_of<T>(op->y),
            op->epsilon,
            static_cast<float *>(op->mean.data),
            static_cast<float *>(op->rstd.data)};
}

template <class T, bool ADDS>
static enum status launch_forward(struct cuda_queue *queue, const norm_rows<T> &op,
                                  const add_residual<T> &before)
{
    const int64_t n = op.columns;
    const bool fits = n <= VECTOR_WIDTH * THREADS && op.x.are_whole(n) && op.weight.are_whole(n) &&
                      op.bias.are_whole(n) && op.y.are_whole(n) && (!ADDS || before.are_whole(n));
    const dim3 grid(static_cast<unsigned>(blocks_of(op.row_count, rows_at_once<ADDS>)));
    const int threads = threads_of_row(n);
    return fits ? LAUNCH(queue, (norm_fwd<T, ADDS, true>), grid, threads, 0, op, before)
                : LAUNCH(queue, (norm_fwd<T, ADDS, false>), grid, threads, 0, op, before);
}

/* before: NULL, or the op that computes x. */
static enum status forward(struct cuda_queue *queue, const struct norm_forward *op,
                           const struct residual_forward *before)
{
    return with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        return before == nullptr
                   ? launch_forward<T, false>(queue, norm_rows_of<T>(op), add_residual<T>{})
                   : launch_forward<T, true>(queue, norm_rows_of<T>(op), add_residual_of<T>(before));
    });
}

enum status cuda_norm_forward(struct cuda_queue *queue, const struct norm_forward *op)
{
    return forward(queue, op, nullptr);
}

enum status cuda_residual_norm_forward(struct cuda_queue *queue, const struct residual_norm_forward *op)
{
    return forward(queue, &op->norm, &op->residual);
}

template <class T> struct norm_back {
    bool layer;
    int64_t row_count, columns;
    rows<T> dy, x, weight, dresidual, dx;
    const float *mean, *rstd;
    rows<float> sums; // lines 2 b and 2 b + 1: dweight and dbias of row block b
    rows<T> branch;   // receives dx with the dropout mask, if present
    struct mask mask;
};

/* The statistics of a row, and the means of g and g * xhat over it. */
struct norm_row {
    float mean, rstd, mean_of[2];
};

/* A row block's contribution to the weight gradients. */
struct weight_sums {
    vec<float> dweight, dbias;
};

/* VECTOR_WIDTH columns of a row. FITS: see the kernel. */
template <class T, bool FITS> struct norm_back_vector {
    vec<T> x, dy, dresidual;
    unsigned kept; // of the branch

    __device__ void read(const norm_back<T> &op, int64_t row, int64_t column)
    {
        const int64_t left = op.columns - column;
        kept = op.mask.kept(row, column);
        x = op.x.template read<FITS>(row, column, left);
        dy = op.dy.template read<FITS>(row, column, left);
        if (op.dresidual.data != nullptr)
            dresidual = op.dresidual.template read<FITS>(row, column, left);
    }

    __device__ void add_products(const vec<float> &weight, const struct norm_row &row, float sum[2]) const
    {
        const vec<float> in = rows<T>::widened(x), g = rows<T>::widened(dy);
        for (int i = 0; i < VECTOR_WIDTH; i++) {
            sum[0] += g.at[i] * weight.at[i];
            sum[1] = fmaf(g.at[i] * weight.at[i], (in.at[i] - row.mean) * row.rstd, sum[1]);
        }
    }

    /* Accumulates into `sums`, and returns dx. */
    __device__ vec<T> add_gradients(const vec<float> &weight, const struct norm_row &row,
                                    struct weight_sums &sums) const
    {
        const vec<float> in = rows<T>::widened(x), g = rows<T>::widened(dy);
        vec<float> dx = rows<T>::widened(dresidual);
        for (int i = 0; i < VECTOR_WIDTH; i++) {
            const float xhat = (in.at[i] - row.mean) * row.rstd;
            dx.at[i] += row.rstd * (g.at[i] * weight.at[i] - row.mean_of[0] - xhat * row.mean_of[1]);
            sums.dweight.at[i] += g.at[i] * xhat;
            sums.dbias.at[i] += g.at[i];
        }
        return rows<T>::narrowed(dx);
    }

    /* Stores it, and the masked copy for the branch. */
    __device__ void write(const norm_back<T> &op, int64_t row, int64_t column, const vec<T> &dx) const
    {
        const int64_t left = op.columns - column;
        op.dx.template write<FITS>(row, column, left, dx);
        if (op.branch.data == nullptr)
            return;
        vec<float> q = rows<T>::widened(dx);
        op.mask.apply(kept, q);
        op.branch.template store<FITS>(row, column, left, q);
    }
};

template <bool FITS, class T>
static __device__ void store_sums(const norm_back<T> &op, int64_t column, const struct weight_sums &sums)
{
    const int64_t line = 2 * static_cast<int64_t>(blockIdx.x), left = op.columns - column;
    op.sums.template store<FITS>(line, column, left, sums.dweight);
    if (op.layer)
        op.sums.template store<FITS>(line + 1, column, left, sums.dbias);
}

template <class T> static __device__ struct weight_sums load_sums(const norm_back<T> &op, int64_t column)
{
    const int64_t line = 2 * static_cast<int64_t>(blockIdx.x), left = op.columns - column;
    struct weight_sums sums = {op.sums.load(line, column, left), {}};
    if (op.layer)
        sums.dbias = op.sums.load(line + 1, column, left);
    return sums;
}

/* FITS: a row is one 16-byte aligned vector per thread, which keeps it and the sums of its columns in
 * registers. Otherwise it is read again, and the sums are kept in memory between rows: the same
 * arithmetic. */
template <class T, bool FITS> __global__ void __launch_bounds__(THREADS) norm_bwd(norm_back<T> op)
{
    const int64_t n = op.columns, first = VECTOR_WIDTH * threadIdx.x,
                  stride = FITS ? n : VECTOR_WIDTH * blockDim.x;
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * NORM_ROW_BLOCK,
                  end = begin + NORM_ROW_BLOCK < op.row_count ? begin + NORM_ROW_BLOCK : op.row_count;
    struct weight_sums sums = {};
    for (int64_t r = begin; r < end; r++) {
        struct norm_row row = {op.layer ? op.mean[r] : 0.0F, op.rstd[r], {}};
        norm_back_vector<T, FITS> in = {};
        float sum[2] = {};
        for (int64_t c = first; c < n; c += stride) {
            in.read(op, r, c);
            in.add_products(op.weight.template load<FITS>(0, c, n - c), row, sum);
        }
        block_sums<2>(sum);
        row.mean_of[0] = op.layer ? sum[0] / static_cast<float>(n) : 0.0F;
        row.mean_of[1] = sum[1] / static_cast<float>(n);
        for (int64_t c = first; c < n; c += stride) {
            if (!FITS) {
                in.read(op, r, c);
                sums = r > begin ? load_sums(op, c) : weight_sums{};
            }
            const vec<float> weight = op.weight.template load<FITS>(0, c, n - c);
            in.write(op, r, c, in.add_gradients(weight, row, sums));
            if (!FITS)
                store_sums<FITS>(op, c, sums);
        }
    }
    if (FITS && first < n)
        store_sums<FITS>(op, first, sums);
}

template <class T> static bool fits(const norm_back<T> &op)
{
    const int64_t n = op.columns;
    return n <= VECTOR_WIDTH * THREADS && op.dy.are_whole(n) && op.x.are_whole(n) && op.weight.are_whole(n) &&
           op.dresidual.are_whole(n) && op.dx.are_whole(n) && op.branch.are_whole(n);
}

/* then: NULL, or the op that follows on dx. */
static enum status backward(struct cuda_queue *queue, const struct norm_backward *op,
                            const struct residual_backward *then)
{
    const bool layer = op->kind == NORM_LAYER;
    const int64_t row_count = op->x.dim[0], columns = op->x.dim[1],
                  blocks = blocks_of(row_count, NORM_ROW_BLOCK);
    void *scratch;
    TRY(cuda_scratch(queue, static_cast<size_t>(2 * blocks * columns) * sizeof(float), &scratch));
    float *const lines = static_cast<float *>(scratch);
    TRY(with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        norm_back<T> args = {layer,
                             row_count,
                             columns,
                             rows_of<T>(op->dy),
                             rows_of<T>(op->x),
                             rows_of<T>(op->weight),
                             rows_of<T>(op->dresidual),
                             rows_of<T>(op->dx),
                             static_cast<const float *>(op->mean.data),
                             static_cast<const float *>(op->rstd.data),
                             lines_of(lines, columns),
                             {},
                             {}};
        if (then != nullptr) {
            args.branch = rows_of<T>(then->dx);
            args.mask = mask_of(&then->dropout);
        }
        const dim3 grid(static_cast<unsigned>(blocks));
        const int threads = threads_of_row(columns);
        return fits(args) ? LAUNCH(queue, (norm_bwd<T, true>), grid, threads, 0, args)
                          : LAUNCH(queue, (norm_bwd<T, false>), grid, threads, 0, args);
    }));
    struct partial_sums sums = {lines, blocks, columns, 2 * columns, {}, false};
    sums.out[0] = static_cast<float *>(op->dweight.data);
    sums.out[1] = static_cast<float *>(op->dbias.data);
    return run_partial_sums(queue, sums, layer ? 2 : 1);
}

enum status cuda_norm_backward(struct cuda_queue *queue, const struct norm_backward *op)
{
    return backward(queue, op, nullptr);
}

enum status cuda_residual_norm_backward(struct cuda_queue *queue, const struct residual_norm_backward *op)
{
    return backward(queue, &op->norm, residual_backward_is_done(&op->residual) ? nullptr : &op->residual);
}
