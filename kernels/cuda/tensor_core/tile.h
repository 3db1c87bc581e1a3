// SPDX-License-Identifier: Apache-2.0
/* Tiles of 16-bit elements in shared memory, and tensor-core matmuls on them.
 *
 *     row r:   chunk 0 ^ (r % 8) | chunk 1 ^ (r % 8) | ...        a chunk: 8 elements, 16 bytes
 *
 * The XOR swizzle maps the same chunk of eight rows to eight different bank groups, so that ldmatrix, which
 * reads exactly that, has no bank conflicts; nor does a write of a full row.
 *
 * A tile of rows [n][k] is a right operand k x n as stored, and n x k with a transposing ldmatrix: the same
 * tile serves q k^T and ds k. M, N: the warp's rows in units of 16, the result's columns in units of 8. */
#pragma once

#include "kernels/cuda/memory_bound/rows.h"
#include "kernels/cuda/tensor_core/mma.h"

/* Rows of D elements in shared memory, swizzled. */
template <class T, int D> struct tile {
    T *data;

    __device__ T *at(int row, int chunk) const
    {
        return data + row * D + ((chunk ^ (row & 7)) * 8);
    }
};

/* Rows [first, first + ROWS) of one head, zeros past the sequence's end. */
template <class T, int D, int ROWS, int THREADS>
__device__ void start_rows(const tile<T, D> &to, const rows<T> &from, int64_t row, int64_t column, int first,
                           int sequence)
{
    UNROLL_ALL
    for (int i = 0; i < ROWS * (D / 8) / THREADS; i++) {
        const int vector = i * THREADS + static_cast<int>(threadIdx.x), r = vector / (D / 8),
                  chunk = vector % (D / 8);
        const bool present = first + r < sequence;
        cp_async<16>(to.at(r, chunk), from.row(row + (present ? first + r : 0)) + column + 8 * chunk,
                     present);
    }
}

/* One element per column. */
template <int COLUMNS, class N> __device__ void start_elements(N *to, const N *from, int first, int sequence)
{
    const int c = static_cast<int>(threadIdx.x);
    if (c < COLUMNS)
        cp_async<4>(to + c, from + (first + c < sequence ? first + c : 0), first + c < sequence);
}

/* s = x u^T: the warp's 16 M rows of x from `mine` on, 8 N rows of u, contracted over a head's columns. */
template <int M, int N, class T, int D>
__device__ void multiply_rows(float s[M][N][4], const tile<T, D> &x, int mine, const tile<T, D> &u)
{
    const int lane = static_cast<int>(threadIdx.x % WARP);
    UNROLL_ALL
    for (int m = 0; m < M; m++)
        UNROLL_ALL
    for (int n = 0; n < N; n++)
        s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0F;
    UNROLL_ALL
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
        UNROLL_ALL
        for (int m = 0; m < M; m++)
            ldmatrix_x4(a[m], x.at(mine + 16 * m + lane % 16, 2 * k + lane / 16));
        UNROLL_ALL
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4]; // both halves of k for columns n, then for n + 1
            ldmatrix_x4(b, u.at(8 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            UNROLL_ALL
            for (int m = 0; m < M; m++) {
                mma_m16n8k16<T>(s[m][n], a[m], b);
                mma_m16n8k16<T>(s[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* sum += s w: s as produced by multiply_rows, rounded; 8 N rows of w, all of a head's columns. */
template <int M, int N, class T, int D>
__device__ void add_matmul(float sum[M][D / 8][4], const float s[M][N][4], const tile<T, D> &w)
{
    const int lane = static_cast<int>(threadIdx.x % WARP);
    UNROLL_ALL
    for (int k = 0; k < N / 2; k++) {
        uint32_t a[M][4];
        UNROLL_ALL
        for (int m = 0; m < M; m++)
            UNROLL_ALL
        for (int i = 0; i < 4; i++)
            a[m][i] = narrow_pair<T>(s[m][2 * k + i / 2][i % 2 * 2], s[m][2 * k + i / 2][i % 2 * 2 + 1]);
        UNROLL_ALL
        for (int d = 0; d < D / 8; d += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, w.at(16 * k + lane % 16, d + lane / 16));
            UNROLL_ALL
            for (int m = 0; m < M; m++) {
                mma_m16n8k16<T>(sum[m][d], a[m], b);
                mma_m16n8k16<T>(sum[m][d + 1], a[m], b + 2);
            }
        }
    }
}

/* Stores a sum, scaled by `factor` per row and rounded, to rows [first + mine, ...) of `to`, staged through
 * the warp's own rows of a released tile so that global stores are full 16-byte chunks. */
template <int M, class T, int D>
__device__ void store_rows(const rows<T> &to, int64_t row, int64_t column, int first, int mine, int sequence,
                           const float sum[M][D / 8][4], const float factor[M][2], const tile<T, D> &by)
{
    const int lane = static_cast<int>(threadIdx.x % WARP), group = lane / 4, in_group = lane % 4;
    __syncwarp();
    UNROLL_ALL
    for (int m = 0; m < M; m++)
        UNROLL_ALL
    for (int d = 0; d < D / 8; d++)
        UNROLL_ALL
    for (int half = 0; half < 2; half++)
        *reinterpret_cast<uint32_t *>(by.at(mine + 16 * m + 8 * half + group, d) + 2 * in_group) =
            narrow_pair<T>(sum[m][d][2 * half] * factor[m][half], sum[m][d][2 * half + 1] * factor[m][half]);
    __syncwarp();
    for (int i = lane; i < 16 * M * (D / 8); i += WARP) {
        const int r = mine + i / (D / 8), chunk = i % (D / 8);
        if (first + r < sequence)
            *reinterpret_cast<vec<T> *>(to.row(row + first + r) + column + 8 * chunk) =
                *reinterpret_cast<const vec<T> *>(by.at(r, chunk));
    }
}
