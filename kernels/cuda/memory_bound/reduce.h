// SPDX-License-Identifier: Apache-2.0
/* Block-wide sums and maxima, in a fixed tree: lanes of a warp, then warps. All threads of the block must
 * call them, and all receive the result. */
#pragma once

#include "kernels/cuda/memory_bound/rows.h"

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

/* zero: the identity of op. */
template <class T, class Op> __device__ T block_reduce(T value, Op op, T zero)
{
    SHARED(T, of_warp, WARP);
    const unsigned lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    value = warp_reduce(value, op);
    __syncthreads(); // the previous call's result may still be in use
    if (lane == 0)
        of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_reduce(lane < warps ? of_warp[lane] : zero, op);
}

template <class T> __device__ T block_sum(T value)
{
    return block_reduce(value, plus(), T());
}

/* COUNT sums that share their barriers. */
template <int COUNT> __device__ void block_sums(float sum[COUNT])
{
    SHARED(float, of_warp, COUNT *WARP);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    UNROLL_ALL
    for (int s = 0; s < COUNT; s++)
        sum[s] = warp_reduce(sum[s], plus());
    __syncthreads();
    UNROLL_ALL
    for (int s = 0; s < COUNT; s++)
        if (lane == 0)
            of_warp[s * WARP + warp] = sum[s];
    __syncthreads();
    UNROLL_ALL
    for (int s = 0; s < COUNT; s++)
        sum[s] = warp_reduce(lane < warps ? of_warp[s * WARP + lane] : 0.0F, plus());
}

/* Applies f to each of this thread's VECTOR_WIDTH-column vectors of a row, in order, with `rest` for missing
 * columns. Several loads are kept in flight, since there is no other work to hide their latency. */
enum { VECTORS_AT_ONCE = 4 };

template <class T, class F>
__device__ void walk_row(const rows<T> &in, int64_t row, int64_t columns, typename computing<T>::type rest,
                         F f)
{
    const int64_t step = VECTOR_WIDTH * blockDim.x;
    for (int64_t first = VECTOR_WIDTH * threadIdx.x; first < columns; first += VECTORS_AT_ONCE * step) {
        vec<T> p[VECTORS_AT_ONCE] = {};
        UNROLL_ALL
        for (int k = 0; k < VECTORS_AT_ONCE; k++)
            if (k * step < columns - first)
                p[k] = in.read(row, first + k * step, columns - first - k * step);
        UNROLL_ALL
        for (int k = 0; k < VECTORS_AT_ONCE; k++) {
            const int64_t left = columns - first - k * step;
            if (left <= 0)
                break;
            auto q = rows<T>::widened(p[k]);
            if (left < VECTOR_WIDTH)
                for (int i = 0; i < VECTOR_WIDTH; i++)
                    q.at[i] = i < left ? q.at[i] : rest;
            f(q);
        }
    }
}

/* Sums over rows, in blocks of ROW_BLOCK rows: first within each block, then over the blocks.
 *
 * The functor F defines a row's terms: read(row, column, left) loads the inputs of VECTOR_WIDTH columns, and
 * add() adds their terms to sum[F::SUMS]. They are separate so that loads of several rows are in flight
 * before the first is used: the threads are few and have no other work to hide the latency. */
enum { ROW_BLOCK = SUM_ROW_BLOCK, ROWS_AT_ONCE = 8 };

template <class F>
__global__ void column_sums_partial(F f, int64_t row_count, int64_t columns, rows<float> partial)
{
    const int64_t column = VECTOR_WIDTH * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x),
                  left = columns - column;
    if (left <= 0)
        return;
    for (int64_t block = blockIdx.y; block * ROW_BLOCK < row_count; block += gridDim.y) {
        vec<float> sum[F::SUMS] = {};
        int64_t row = block * ROW_BLOCK, end = row + ROW_BLOCK < row_count ? row + ROW_BLOCK : row_count;
        for (; row + ROWS_AT_ONCE <= end; row += ROWS_AT_ONCE) {
            typename F::row in[ROWS_AT_ONCE];
            UNROLL_ALL
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                in[i] = f.read(row + i, column, left);
            UNROLL_ALL
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                f.add(in[i], sum);
        }
        for (; row < end; row++)
            f.add(f.read(row, column, left), sum);
        for (int s = 0; s < F::SUMS; s++)
            partial.store(block * F::SUMS + s, column, left, sum[s]);
    }
}

struct partial_sums {
    const float *partial;
    int64_t lines, columns, stride; // lines of `columns` floats, `stride` apart; the lines of the next sum
                                    // follow
    float *out[2];
    bool accumulate;
};

/* Sums the lines of 32 columns: warp w of W adds lines w, w + W, ..., and the warps' sums are added in order.
 * A single warp would expose the memory latency of every line. */
[[maybe_unused]] static __global__ void column_sums_finish(struct partial_sums sums)
{
    SHARED(float, of_warp, WARP *WARP);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int64_t column = static_cast<int64_t>(blockIdx.x) * WARP + lane;
    const float *const line = sums.partial + blockIdx.y * sums.columns + column;
    float *const out = sums.out[blockIdx.y];
    float total = 0.0F;
    if (column < sums.columns) {
        UNROLL(8)
        for (int64_t b = warp; b < sums.lines; b += warps)
            total += line[b * sums.stride];
    }
    of_warp[threadIdx.x] = total;
    __syncthreads();
    if (warp > 0 || column >= sums.columns)
        return;
    for (unsigned w = 1; w < warps; w++)
        total += of_warp[w * WARP + lane];
    out[column] = sums.accumulate ? out[column] + total : total;
}

/* Reduces the lines in scratch to the output of each sum. */
static inline enum status run_partial_sums(struct cuda_queue *queue, const struct partial_sums &sums,
                                           int count)
{
    enum { THREADS = 512 };
    dim3 grid(static_cast<unsigned>(blocks_of(sums.columns, WARP)), static_cast<unsigned>(count));
    return LAUNCH(queue, column_sums_finish, grid, threads_for(WARP * sums.lines, THREADS), 0, sums);
}

/* out[s][columns] (+)= the terms of f over all rows. */
template <class F>
enum status run_sum_rows(struct cuda_queue *queue, F f, int64_t row_count, int64_t columns,
                         float *const out[F::SUMS], bool accumulate)
{
    enum { THREADS = 128 };
    int64_t blocks = blocks_of(row_count, ROW_BLOCK), vectors = blocks_of(columns, VECTOR_WIDTH);
    void *partial;
    TRY(cuda_scratch(queue, static_cast<size_t>(blocks * F::SUMS * columns) * sizeof(float), &partial));
    int threads = threads_for(vectors, THREADS);
    dim3 grid(static_cast<unsigned>(blocks_of(vectors, threads)),
              static_cast<unsigned>(blocks < MAX_GRID_Y ? blocks : MAX_GRID_Y));
    TRY(LAUNCH(queue, column_sums_partial<F>, grid, threads, 0, f, row_count, columns,
               lines_of(static_cast<float *>(partial), columns)));
    struct partial_sums sums = {
        static_cast<const float *>(partial), blocks, columns, F::SUMS * columns, {}, accumulate};
    for (int s = 0; s < F::SUMS; s++)
        sums.out[s] = out[s];
    return run_partial_sums(queue, sums, F::SUMS);
}
