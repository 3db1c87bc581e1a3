// SPDX-License-Identifier: Apache-2.0
/* Sums of squares for the global norm, and the clip coefficient, with the cpu's arithmetic in the cpu's
 * order. */
#include "kernels/cuda/memory_bound/members.h"
#include "kernels/cuda/memory_bound/reduce.h"

enum { THREADS = 256 };

/* x[0] + x[1] + ... in index order: the block loads them, one thread adds. */
static __device__ double sum_in_order(const double *x, int64_t count)
{
    SHARED(double, tile, THREADS);
    double sum = 0.0;
    for (int64_t first = 0; first < count; first += THREADS) {
        __syncthreads();
        if (first + threadIdx.x < count)
            tile[threadIdx.x] = x[first + threadIdx.x];
        __syncthreads();
        for (int64_t i = 0; threadIdx.x == 0 && i < THREADS && first + i < count; i++)
            sum += tile[i];
    }
    return sum; // valid in thread 0
}

struct squared {
    rows<float> x;
    int64_t count, each, blocks; // `each` elements per block of squares
    double *out;
};

/* One warp per block of squares: these are small, and warps need not wait for each other. */
static __global__ void __launch_bounds__(THREADS)
    gradient_squares_partial(const __grid_constant__ members<squared> all)
{
    enum { AT_ONCE = 4, LINE = VECTOR_WIDTH * WARP };
    unsigned mine = blockIdx.x;
    const squared &op = all.of_block(mine);
    const int64_t block = static_cast<int64_t>(mine) * (THREADS / WARP) + threadIdx.x / WARP;
    if (block >= op.blocks)
        return;
    const int64_t begin = block * op.each, end = begin + op.each < op.count ? begin + op.each : op.count;
    double sum = 0.0;
    for (int64_t i = begin + VECTOR_WIDTH * (threadIdx.x % WARP); i < end; i += AT_ONCE * LINE) {
        vec<float> in[AT_ONCE] = {};
        UNROLL_ALL
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * LINE < end)
                in[k] = op.x.read(0, i + k * LINE, end - i - k * LINE);
        UNROLL_ALL
        for (int k = 0; k < AT_ONCE; k++)
            for (int e = 0; e < VECTOR_WIDTH; e++)
                sum += static_cast<double>(in[k].at[e]) * static_cast<double>(in[k].at[e]); // exact products
    }
    sum = warp_reduce(sum, plus());
    if (threadIdx.x % WARP == 0)
        op.out[block] = sum;
}

struct summed {
    const double *x;
    int64_t count;
    double *out;
};

/* Each thread adds every SUM_THREADS-th element (in smaller blocks it has at most one), and the threads' sums
 * are reduced in a tree: a single thread in index order would take as long as a microbatch for a tensor with
 * a hundred thousand blocks. */
enum { SUM_THREADS = 1024 };
static __global__ void __launch_bounds__(SUM_THREADS)
    gradient_squares_sum(const __grid_constant__ members<summed> all)
{
    unsigned mine = blockIdx.x;
    const summed &op = all.of_block(mine);
    double sum = 0.0;
    UNROLL(8)
    for (int64_t i = threadIdx.x; i < op.count; i += blockDim.x)
        sum += op.x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *op.out = sum;
}

enum status cuda_squares(struct cuda_queue *queue, const struct squares_list *op)
{
    return launch_members<squared>(
        op->count,
        [=](int64_t i, squared &one) {
            const struct tensor x = op->at[i].x;
            const int64_t count = tensor_count(x), columns = x.ndim == 1 ? 1 : x.dim[1];
            one = {floats(tensor_1d(x.data, F32, count)), count, squares_block_rows(columns) * columns,
                   count > 0 ? squares_blocks(x) : 0, static_cast<double *>(op->at[i].out.data)};
            return blocks_of(one.blocks, THREADS / WARP);
        },
        [=](const members<squared> &all, unsigned blocks) {
            return LAUNCH(queue, gradient_squares_partial, dim3(blocks), THREADS, 0, all);
        });
}

enum status cuda_sum(struct cuda_queue *queue, const struct sum_list *op)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < op->count; i++)
        longest = op->at[i].x.dim[0] > longest ? op->at[i].x.dim[0] : longest;
    const int threads = threads_for(longest, SUM_THREADS);
    return launch_members<summed>(
        op->count,
        [=](int64_t i, summed &one) {
            const struct sum &from = op->at[i];
            one = {static_cast<const double *>(from.x.data), from.x.dim[0],
                   static_cast<double *>(from.out.data)};
            return int64_t{1};
        },
        [=](const members<summed> &all, unsigned blocks) {
            return LAUNCH(queue, gradient_squares_sum, dim3(blocks), threads, 0, all);
        });
}

struct clip_sums {
    const double *loss, *tokens, *squares;
    int64_t samples, tensors;
    double limit;
    const float *loss_scale;
    struct adamw_hyper *hyper;
    double *result;
};

static __global__ void __launch_bounds__(THREADS) gradient_clip_factor(struct clip_sums op)
{
    const double tokens = sum_in_order(op.tokens, op.samples), squares = sum_in_order(op.squares, op.tensors);
    const double loss = sum_in_order(op.loss, op.samples);
    if (threadIdx.x != 0)
        return;
    const double scale = op.loss_scale != nullptr ? static_cast<double>(*op.loss_scale) : 1.0;
    const double count = tokens > 0.0 ? tokens : 1.0, norm = sqrt(squares) / count / scale;
    const double coefficient = op.limit > 0.0 ? op.limit / (norm + 1e-6) : 1.0;
    const bool skips = op.loss_scale != nullptr && !(norm < INFINITY);
    op.result[0] = loss / count;
    op.result[1] = norm;
    op.result[2] = tokens;
    op.result[3] = scale;
    op.hyper->gradient_scale =
        skips ? 0.0F : static_cast<float>((coefficient < 1.0 ? coefficient : 1.0) / count / scale);
    op.hyper->skip = skips ? 1.0F : 0.0F;
}

enum status cuda_clip(struct cuda_queue *queue, const struct clip *op)
{
    struct clip_sums args = {static_cast<const double *>(op->loss.data),
                             static_cast<const double *>(op->tokens.data),
                             static_cast<const double *>(op->squares.data),
                             op->loss.dim[0],
                             op->squares.dim[0],
                             op->limit,
                             op->loss_scale,
                             op->hyper,
                             static_cast<double *>(op->result.data)};
    return LAUNCH(queue, gradient_clip_factor, dim3(1), THREADS, 0, args);
}
