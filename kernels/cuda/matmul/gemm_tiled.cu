// SPDX-License-Identifier: Apache-2.0
/* Our own matrix multiplication, for use without cuBLASLt: a block computes 64 x 64 of c, a thread 4 x 4 of
 * that, over slices of 16 of K in shared memory. Each element is one chain of K multiply-adds, in order. */
#include "kernels/cuda/memory_bound/rows.h"

enum { SIDE = 64, SLICE = 16, THREADS = 256, BY = 4, ACROSS = SIDE / BY, PITCH = SIDE + 1 };

struct matmul {
    struct any_rows a, b, c, bias;
    int64_t m, n, k;
    bool transpose_a, transpose_b, accumulate;
};

/* slice[k][i] = element (first + i, first_k + k) of a matrix [rows, K], or of its transpose; 0 outside. */
static __device__ void load_slice(const struct any_rows &from, bool rows_are_k, int64_t first, int64_t count,
                                  int64_t first_k, int64_t k_count, float *slice)
{
    for (int i = static_cast<int>(threadIdx.x); i < SIDE * SLICE; i += THREADS) {
        // Coalesced: neighbouring threads read neighbouring columns.
        const int k = rows_are_k ? i / SIDE : i % SLICE, r = rows_are_k ? i % SIDE : i / SLICE;
        const bool inside = first + r < count && first_k + k < k_count;
        const int64_t row = rows_are_k ? first_k + k : first + r,
                      column = rows_are_k ? first + r : first_k + k;
        slice[k * PITCH + r] = inside ? from.load(row, column) : 0.0F;
    }
}

static __global__ void __launch_bounds__(THREADS) gemm_tiled_f32(struct matmul p)
{
    SHARED(float, a, SLICE *PITCH);
    SHARED(float, b, SLICE *PITCH);
    const int64_t row = static_cast<int64_t>(blockIdx.y) * SIDE,
                  column = static_cast<int64_t>(blockIdx.x) * SIDE;
    const int i = static_cast<int>(threadIdx.x) / ACROSS, j = static_cast<int>(threadIdx.x) % ACROSS;
    float sum[BY][BY] = {};
    for (int64_t first = 0; first < p.k; first += SLICE) {
        __syncthreads();
        load_slice(p.a, p.transpose_a, row, p.m, first, p.k, a);
        load_slice(p.b, !p.transpose_b, column, p.n, first, p.k, b);
        __syncthreads();
        for (int k = 0; k < SLICE; k++)
            for (int y = 0; y < BY; y++)
                for (int x = 0; x < BY; x++)
                    sum[y][x] = fmaf(a[k * PITCH + i + y * ACROSS], b[k * PITCH + j + x * ACROSS], sum[y][x]);
    }
    for (int y = 0; y < BY; y++) {
        for (int x = 0; x < BY; x++) {
            const int64_t r = row + i + y * ACROSS, c = column + j + x * ACROSS;
            if (r >= p.m || c >= p.n)
                continue;
            float value = sum[y][x];
            if (p.bias.data != nullptr)
                value += p.bias.load(0, c);
            if (p.accumulate)
                value += p.c.load(r, c);
            p.c.store(r, c, value);
        }
    }
}

enum status cuda_gemm_tiled(struct cuda_queue *queue, const struct gemm *op)
{
    struct matmul p = {any_rows_of(op->a),
                       any_rows_of(op->b),
                       any_rows_of(op->c),
                       any_rows_of(op->bias),
                       op->c.dim[0],
                       op->c.dim[1],
                       op->a.dim[op->transpose_a ? 0 : 1],
                       op->transpose_a,
                       op->transpose_b,
                       op->accumulate};
    if (blocks_of(p.m, SIDE) > MAX_GRID_Y)
        return fail(NOT_SUPPORTED, "cuda: our own matrix multiplication supports at most %lld rows, not %lld",
                    static_cast<long long>(MAX_GRID_Y * SIDE), static_cast<long long>(p.m));
    dim3 grid(static_cast<unsigned>(blocks_of(p.n, SIDE)), static_cast<unsigned>(blocks_of(p.m, SIDE)));
    return LAUNCH(queue, gemm_tiled_f32, grid, THREADS, 0, p);
}
