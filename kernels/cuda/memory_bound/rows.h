// SPDX-License-Identifier: Apache-2.0
/* Vectorized memory access: eight neighbouring elements at a time, 16 bytes of bf16 and f16 or twice 16 of
 * fp32, in 16-byte accesses if pointer and stride are aligned, else element by element. The mapping of
 * elements to threads depends on neither alignment nor type. Hence the bits of a sum do not depend on an
 * array's address, and an op on a 16-bit type equals the fp32 op on the same values, rounded once. */
#pragma once

#include "kernels/cuda/tensor_core/mma.h"

#include <string.h>

enum { VECTOR_WIDTH = 8 };

/* The elements of a row that a thread handles at once. */
template <class T> struct alignas(16) vec {
    T at[VECTOR_WIDTH];

    __device__ T get(int i) const
    {
        return at[i];
    }
    __device__ void set(int i, T x)
    {
        at[i] = x;
    }
};

/* 16-bit elements stay packed in pairs, as loaded, until they are used. Unpacking them after the two branches
 * of a read would wait for the load there, and a caller that reads several vectors ahead would have only one
 * in flight. */
template <class T> struct alignas(16) vec_of_pairs {
    uint32_t pair[VECTOR_WIDTH / 2];

    __device__ T get(int i) const
    {
        const uint16_t bits = static_cast<uint16_t>(pair[i / 2] >> 16 * (i % 2));
        T x;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    __device__ void set(int i, T x)
    {
        uint16_t bits;
        memcpy(&bits, &x, sizeof bits);
        const int shift = 16 * (i % 2);
        pair[i / 2] = (pair[i / 2] & ~(0xffffU << shift)) | static_cast<uint32_t>(bits) << shift;
    }
};
template <> struct vec<bf16> : vec_of_pairs<bf16> {
};
template <> struct vec<f16> : vec_of_pairs<f16> {
};
template <> struct vec<uint16_t> : vec_of_pairs<uint16_t> {
};

/* The compute type: fp32 for 16-bit types, else the type itself. */
template <class T> struct computing {
    using type = T;
    static __device__ void widen_all(const vec<T> &from, vec<T> &to)
    {
        to = from;
    }
    static __device__ void narrow_all(const vec<T> &from, vec<T> &to)
    {
        to = from;
    }
};

template <class T> struct computing_in_fp32 {
    using type = float;
    static __device__ void widen_all(const vec<T> &from, vec<float> &to)
    {
        UNROLL_ALL
        for (int i = 0; i < VECTOR_WIDTH; i++)
            to.at[i] = widen(from.get(i));
    }
    static __device__ void narrow_all(const vec<float> &from, vec<T> &to)
    {
        UNROLL_ALL
        for (int i = 0; i < VECTOR_WIDTH; i += 2)
            to.pair[i / 2] = narrow_pair<T>(from.at[i], from.at[i + 1]);
    }
};
template <> struct computing<bf16> : computing_in_fp32<bf16> {
};
template <> struct computing<f16> : computing_in_fp32<f16> {
};

/* A matrix, as kernels access it. */
template <class T> struct rows {
    using wide_type = typename computing<T>::type;
    T *data;
    int64_t stride;
    bool wide; // every row is 16-byte aligned

    __device__ T *row(int64_t r) const
    {
        return data + r * stride;
    }

    /* Loads columns [column, column + VECTOR_WIDTH) without conversion; only the first `left` exist, the
     * others are 0. WHOLE: the caller guarantees are_whole(), and no code is generated for a tail. */
    template <bool WHOLE = false> __device__ vec<T> read(int64_t r, int64_t column, int64_t left) const
    {
        const T *from = row(r) + column;
        const bool at_once = WHOLE || (wide && left >= VECTOR_WIDTH);
        vec<T> p = {};
        if (at_once) {
            p = *reinterpret_cast<const vec<T> *>(from);
        } else {
            UNROLL_ALL
            for (int i = 0; i < VECTOR_WIDTH; i++)
                p.set(i, i < left ? from[i] : T());
        }
        return p;
    }

    /* A vector from read(), converted to the compute type. */
    static __device__ vec<wide_type> widened(const vec<T> &p)
    {
        vec<wide_type> q;
        computing<T>::widen_all(p, q);
        return q;
    }

    template <bool WHOLE = false>
    __device__ vec<wide_type> load(int64_t r, int64_t column, int64_t left) const
    {
        return widened(read<WHOLE>(r, column, left));
    }

    /* Missing columns are `rest`. */
    __device__ vec<wide_type> load(int64_t r, int64_t column, int64_t left, wide_type rest) const
    {
        vec<wide_type> q = load(r, column, left);
        UNROLL_ALL
        for (int i = 0; i < VECTOR_WIDTH; i++)
            q.at[i] = i < left ? q.at[i] : rest;
        return q;
    }

    /* Rounded to the storage type. */
    static __device__ vec<T> narrowed(const vec<wide_type> &q)
    {
        vec<T> p;
        computing<T>::narrow_all(q, p);
        return p;
    }

    template <bool WHOLE = false>
    __device__ void write(int64_t r, int64_t column, int64_t left, const vec<T> &p) const
    {
        T *to = row(r) + column;
        const bool at_once = WHOLE || (wide && left >= VECTOR_WIDTH);
        if (at_once) {
            uint32_t word[sizeof p / sizeof(uint32_t)];
            memcpy(word, &p, sizeof p);
            UNROLL_ALL
            for (size_t i = 0; i < sizeof p / 16; i++)
                store_16_bytes(reinterpret_cast<unsigned char *>(to) + 16 * i, word + 4 * i);
        } else {
            UNROLL_ALL
            for (int i = 0; i < VECTOR_WIDTH; i++)
                if (i < left)
                    to[i] = p.get(i);
        }
    }

    template <bool WHOLE = false>
    __device__ void store(int64_t r, int64_t column, int64_t left, const vec<wide_type> &q) const
    {
        write<WHOLE>(r, column, left, narrowed(q));
    }

    /* Returns true if rows of this many columns consist of 16-byte accesses only, or the matrix is absent. */
    bool are_whole(int64_t columns) const
    {
        return data == nullptr || (wide && columns % VECTOR_WIDTH == 0);
    }
};

/* A dense tensor of other than two dimensions is one row. Absent tensor: data is NULL. */
template <class T> static inline rows<T> rows_of(struct tensor t)
{
    rows<T> r = {static_cast<T *>(t.data), t.ndim == 2 ? t.stride[0] : 0, false};
    r.wide =
        reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && r.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
    return r;
}

static inline rows<float> floats(struct tensor t)
{
    return rows_of<float>(t);
}

/* Contiguous lines of `columns` floats. */
static inline rows<float> lines_of(float *data, int64_t columns)
{
    return rows_of<float>(tensor_2d(data, F32, 1, columns));
}

/* f(T()), with T the element type: f32, bf16 or f16. */
template <class F> static enum status with_type(enum dtype dtype, F f)
{
    if (dtype == BF16)
        return f(bf16());
    return dtype == F16 ? f(f16()) : f(float());
}

/* A matrix of f32, bf16 or f16 for kernels that are compiled once: branches on the type at each element. */
struct any_rows {
    void *data;
    int64_t stride;
    enum dtype dtype;

    __device__ float load(int64_t row, int64_t column) const
    {
        const int64_t i = row * stride + column;
        if (dtype == F32)
            return static_cast<const float *>(data)[i];
        return dtype == BF16 ? widen(static_cast<const bf16 *>(data)[i])
                             : widen(static_cast<const f16 *>(data)[i]);
    }

    __device__ void store(int64_t row, int64_t column, float x) const
    {
        const int64_t i = row * stride + column;
        if (dtype == F32)
            static_cast<float *>(data)[i] = x;
        else
            static_cast<uint16_t *>(data)[i] =
                static_cast<uint16_t>(dtype == BF16 ? narrow_pair<bf16>(x, 0.0F) : narrow_pair<f16>(x, 0.0F));
    }
};

static inline struct any_rows any_rows_of(const struct tensor &t)
{
    return {t.data, t.ndim == 2 ? t.stride[0] : 0, t.dtype};
}

static inline int64_t row_count(struct tensor t)
{
    return t.ndim == 2 ? t.dim[0] : 1;
}

static inline int64_t column_count(struct tensor t)
{
    return t.ndim == 2 ? t.dim[1] : tensor_count(t);
}

/* f(row, column, left) for every VECTOR_WIDTH columns of every row, one thread each. */
template <class F> __global__ void elementwise(F f, int64_t row_count, int64_t columns)
{
    int64_t column = VECTOR_WIDTH * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
    for (int64_t row = blockIdx.y; row < row_count && column < columns; row += gridDim.y)
        f(row, column, columns - column);
}

/* The same in two steps: f.write(f.read(row, column, left), row, column, left). Each thread handles two
 * vectors, one below the other, or in a single row a block's width apart, and has both loads in flight before
 * it waits. With one 16-byte load per thread a full multiprocessor has 32 KiB in flight, too little for full
 * memory bandwidth. */
template <class F> __global__ void elementwise_pair(F f, int64_t row_count, int64_t columns)
{
    const bool below = row_count > 1;
    const int64_t across = below ? 0 : VECTOR_WIDTH * blockDim.x, down = below ? 1 : 0;
    const int64_t column =
        VECTOR_WIDTH * (static_cast<int64_t>(blockIdx.x) * (below ? 1 : 2) * blockDim.x + threadIdx.x);
    for (int64_t row = 2 * static_cast<int64_t>(blockIdx.y); row < row_count && column < columns;
         row += 2 * static_cast<int64_t>(gridDim.y)) {
        const int64_t left = columns - column;
        const bool both = row + down < row_count && left > across;
        typename F::in in[2] = {};
        in[0] = f.read(row, column, left);
        if (both)
            in[1] = f.read(row + down, column + across, left - across);
        f.write(in[0], row, column, left);
        if (both)
            f.write(in[1], row + down, column + across, left - across);
    }
}

/* Block size that divides `vectors` evenly, in full warps. */
static inline int threads_of_vectors(int64_t vectors)
{
    enum { THREADS = 256 };
    return threads_for(blocks_of(vectors, blocks_of(vectors, THREADS)), THREADS);
}

static inline dim3 grid_of(int64_t across, int64_t down)
{
    return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down < MAX_GRID_Y ? down : MAX_GRID_Y));
}

template <class F>
enum status run_each_vector(struct cuda_queue *queue, F f, int64_t row_count, int64_t columns)
{
    const int64_t vectors = blocks_of(columns, VECTOR_WIDTH);
    const int threads = threads_of_vectors(vectors);
    return LAUNCH(queue, elementwise<F>, grid_of(blocks_of(vectors, threads), row_count), threads, 0, f,
                  row_count, columns);
}

template <class F>
enum status run_each_two_vectors(struct cuda_queue *queue, F f, int64_t row_count, int64_t columns)
{
    const bool below = row_count > 1;
    const int64_t vectors = blocks_of(blocks_of(columns, VECTOR_WIDTH), below ? 1 : 2);
    const int threads = threads_of_vectors(vectors);
    return LAUNCH(queue, elementwise_pair<F>,
                  grid_of(blocks_of(vectors, threads), blocks_of(row_count, below ? 2 : 1)), threads, 0, f,
                  row_count, columns);
}
