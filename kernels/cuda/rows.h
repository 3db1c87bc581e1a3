// SPDX-License-Identifier: Apache-2.0
/* How kernels reach memory: four neighbours at a time, in one access of 16 bytes where pointer and stride
 * allow it, and in four where they do not. Which thread gets which four is the same either way, so the bits
 * of a sum do not depend on where an array lies. */
#pragma once

#include "kernels/cuda/launch.h"

template <class T> struct alignas(4 * sizeof(T)) quad {
    T at[4];
};

/* A matrix as a kernel sees it. */
template <class T> struct rows {
    T *data;
    int64_t stride;
    bool wide; // every row begins on 4 * sizeof(T) bytes

    __device__ T *row(int64_t r) const
    {
        return data + r * stride;
    }

    /* Columns [column, column + 4) of which `left` are there; `rest` in place of the others. */
    __device__ quad<T> load(int64_t r, int64_t column, int64_t left, T rest = T()) const
    {
        const T *from = row(r) + column;
        if (wide && left >= 4)
            return *reinterpret_cast<const quad<T> *>(from);
        quad<T> q;
        for (int i = 0; i < 4; i++)
            q.at[i] = i < left ? from[i] : rest;
        return q;
    }

    __device__ void store(int64_t r, int64_t column, int64_t left, const quad<T> &q) const
    {
        T *to = row(r) + column;
        if (wide && left >= 4) {
            *reinterpret_cast<quad<T> *>(to) = q;
            return;
        }
        for (int i = 0; i < 4; i++)
            if (i < left)
                to[i] = q.at[i];
    }
};

/* A dense tensor of other than two dimensions is one row. None: data is NULL. */
template <class T> static inline rows<T> rows_of(struct tensor t)
{
    rows<T> r = {static_cast<T *>(t.data), t.ndim == 2 ? t.stride[0] : 0, false};
    r.wide =
        sizeof(T) == 4 && reinterpret_cast<uintptr_t>(t.data) % sizeof(quad<T>) == 0 && r.stride % 4 == 0;
    return r;
}

static inline rows<float> floats(struct tensor t)
{
    return rows_of<float>(t);
}

static inline int64_t row_count(struct tensor t)
{
    return t.ndim == 2 ? t.dim[0] : 1;
}

static inline int64_t column_count(struct tensor t)
{
    return t.ndim == 2 ? t.dim[1] : tensor_count(t);
}

/* f(row, column, left) for every four columns of every row, each on a thread of its own. */
template <class F> __global__ void each_quad(F f, int64_t row_count, int64_t columns)
{
    int64_t column = 4 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
    for (int64_t row = blockIdx.y; row < row_count && column < columns; row += gridDim.y)
        f(row, column, columns - column);
}

template <class F>
enum status run_each_quad(struct cuda_queue *queue, F f, int64_t row_count, int64_t columns)
{
    enum { THREADS = 256 };
    int64_t quads = blocks_of(columns, 4);
    int threads = threads_for(quads, THREADS);
    dim3 grid(static_cast<unsigned>(blocks_of(quads, threads)),
              static_cast<unsigned>(row_count < MAX_GRID_Y ? row_count : MAX_GRID_Y));
    return LAUNCH(queue, each_quad<F>, grid, threads, 0, f, row_count, columns);
}
