// SPDX-License-Identifier: Apache-2.0
/* Sums and maxima over a block, in a fixed tree: lanes of a warp, then the warps. All threads of the block
 * call them, and all get the result. */
#pragma once

#include "kernels/cuda/rows.h"

enum : unsigned { ALL_LANES = 0xffffffffU };

struct plus {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

struct larger {
    __device__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};

template <class T, class Op> __device__ T warp_reduce(T value, Op op)
{
    for (unsigned step = WARP / 2; step > 0; step /= 2)
        value = op(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

/* zero: what op leaves alone. */
template <class T, class Op> __device__ T block_reduce(T value, Op op, T zero)
{
    SHARED(T, of_warp, WARP);
    const unsigned lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    value = warp_reduce(value, op);
    __syncthreads(); // what an earlier call has left may still be being read
    if (lane == 0)
        of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_reduce(lane < warps ? of_warp[lane] : zero, op);
}

template <class T> __device__ T block_sum(T value)
{
    return block_reduce(value, plus(), T());
}

/* Sums over rows, cut into blocks of ROW_BLOCK rows that are added each on its own, and then in order.
 * f(row, column, left, sum) adds its EACH columns of one row to each of sum[F::SUMS]. */
enum { ROW_BLOCK = 32 };

template <class F> __global__ void add_row_blocks(F f, int64_t row_count, int64_t columns, float *partial)
{
    int64_t column = EACH * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (column >= columns)
        return;
    for (int64_t block = blockIdx.y; block * ROW_BLOCK < row_count; block += gridDim.y) {
        piece<float> sum[F::SUMS] = {};
        int64_t end = (block + 1) * ROW_BLOCK < row_count ? (block + 1) * ROW_BLOCK : row_count;
        UNROLL(4)
        for (int64_t row = block * ROW_BLOCK; row < end; row++)
            f(row, column, columns - column, sum);
        for (int s = 0; s < F::SUMS; s++)
            for (int i = 0; i < EACH; i++)
                if (column + i < columns)
                    partial[(block * F::SUMS + s) * columns + column + i] = sum[s].at[i];
    }
}

struct partial_sums {
    const float *partial;
    int64_t blocks, stride, columns; // lines of `columns` floats, `stride` apart
    float *out;
    bool accumulate;
};

[[maybe_unused]] static __global__ void add_partial_sums(struct partial_sums sums)
{
    int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (column >= sums.columns)
        return;
    float total = 0.0F;
    UNROLL(8)
    for (int64_t b = 0; b < sums.blocks; b++)
        total += sums.partial[b * sums.stride + column];
    sums.out[column] = sums.accumulate ? sums.out[column] + total : total;
}

/* out[s][columns] (+)= what f adds up over all rows. */
template <class F>
enum status run_sum_rows(struct cuda_queue *queue, F f, int64_t row_count, int64_t columns,
                         float *const out[F::SUMS], bool accumulate)
{
    enum { THREADS = 128 };
    int64_t blocks = blocks_of(row_count, ROW_BLOCK), pieces = blocks_of(columns, EACH);
    void *partial;
    TRY(cuda_scratch(queue, static_cast<size_t>(blocks * F::SUMS * columns) * sizeof(float), &partial));
    int threads = threads_for(pieces, THREADS);
    dim3 grid(static_cast<unsigned>(blocks_of(pieces, threads)),
              static_cast<unsigned>(blocks < MAX_GRID_Y ? blocks : MAX_GRID_Y));
    TRY(LAUNCH(queue, add_row_blocks<F>, grid, threads, 0, f, row_count, columns,
               static_cast<float *>(partial)));
    threads = threads_for(columns, THREADS);
    for (int s = 0; s < F::SUMS; s++) {
        struct partial_sums sums = {static_cast<const float *>(partial) + s * columns,
                                    blocks,
                                    F::SUMS * columns,
                                    columns,
                                    out[s],
                                    accumulate};
        if (out[s] != nullptr)
            TRY(LAUNCH(queue, add_partial_sums, dim3(static_cast<unsigned>(blocks_of(columns, threads))),
                       threads, 0, sums));
    }
    return OK;
}
