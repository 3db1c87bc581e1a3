// SPDX-License-Identifier: Apache-2.0
/* The elementary memory ops. fill and copy move 4-byte words (an 8-byte element is two), or 2-byte words
 * for bf16 and f16. */
#define NORMAL_FUNCTION static __host__ __device__ inline
#include "kernels/cuda/memory_bound/random.h"
#include "kernels/cuda/memory_bound/reduce.h"

#include "base/normal.h"
#include <string.h>

/* A tensor as words of W. */
template <class W> static rows<W> words(struct tensor t)
{
    t.stride[0] *= static_cast<int64_t>(dtype_bytes(t.dtype) / sizeof(W));
    return rows_of<W>(t);
}

template <class W> static int64_t word_columns(const struct tensor &t)
{
    return column_count(t) * static_cast<int64_t>(dtype_bytes(t.dtype) / sizeof(W));
}

struct fill_words {
    rows<uint32_t> out;
    uint32_t word[2]; // alternating

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        vec<uint32_t> p;
        for (int i = 0; i < VECTOR_WIDTH; i++)
            p.at[i] = word[i % 2];
        out.store(row, column, left, p);
    }
};

/* A 4-byte or 8-byte element. */
template <class N>
static enum status fill_element(struct cuda_queue *queue, const struct tensor &out, N value)
{
    uint32_t word[2];
    memcpy(word, &value, sizeof value);
    return run_each_vector(queue, fill_words{words<uint32_t>(out), {word[0], word[sizeof value / 4 - 1]}},
                           row_count(out), word_columns<uint32_t>(out));
}

template <class T> struct fill_elements {
    rows<T> out;
    float value;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        vec<float> p;
        for (int i = 0; i < VECTOR_WIDTH; i++)
            p.at[i] = value;
        out.store(row, column, left, p);
    }
};

enum status cuda_fill(struct cuda_queue *queue, const struct fill *op)
{
    const float value = op->value;
    switch (op->out.dtype) {
    case F64:
        return fill_element(queue, op->out, static_cast<double>(value));
    case I32:
        return fill_element(queue, op->out, static_cast<int32_t>(value));
    case I64:
        return fill_element(queue, op->out, static_cast<int64_t>(value));
    case F32:
    case BF16:
    case F16:
    case DTYPE_COUNT:
        break;
    }
    return with_type(op->out.dtype, [=](auto number) {
        using T = decltype(number);
        return run_each_vector(queue, fill_elements<T>{rows_of<T>(op->out), value}, row_count(op->out),
                               column_count(op->out));
    });
}

/* Copies the bits if the types are equal, else rounds. */
template <class From, class To> struct copy_to {
    rows<From> from;
    rows<To> to;
    using in = vec<From>;

    __device__ in read(int64_t row, int64_t column, int64_t left) const
    {
        return from.read(row, column, left);
    }

    __device__ void write(const in &p, int64_t row, int64_t column, int64_t left) const
    {
        to.store(row, column, left, rows<From>::widened(p));
    }
};

enum status cuda_copy(struct cuda_queue *queue, const struct copy *op)
{
    const int64_t count = row_count(op->out);
    if (dtype_bytes(op->out.dtype) == sizeof(uint16_t))
        return run_each_two_vectors(
            queue, copy_to<uint16_t, uint16_t>{words<uint16_t>(op->in), words<uint16_t>(op->out)}, count,
            word_columns<uint16_t>(op->out));
    return run_each_two_vectors(
        queue, copy_to<uint32_t, uint32_t>{words<uint32_t>(op->in), words<uint32_t>(op->out)}, count,
        word_columns<uint32_t>(op->out));
}

enum status cuda_cast(struct cuda_queue *queue, const struct cast *op)
{
    return with_type(op->in.dtype, [=](auto from) {
        return with_type(op->out.dtype, [=](auto to) {
            copy_to<decltype(from), decltype(to)> f = {rows_of<decltype(from)>(op->in),
                                                       rows_of<decltype(to)>(op->out)};
            return run_each_two_vectors(queue, f, row_count(op->out), column_count(op->out));
        });
    });
}

template <class T> struct add_to {
    rows<T> in, out;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        vec<T> a = out.load(row, column, left), b = in.load(row, column, left);
        for (int i = 0; i < VECTOR_WIDTH; i++)
            a.at[i] += b.at[i];
        out.store(row, column, left, a);
    }
};

enum status cuda_add(struct cuda_queue *queue, const struct add *op)
{
    if (op->out.dtype == F64)
        return run_each_vector(queue, add_to<double>{rows_of<double>(op->in), rows_of<double>(op->out)},
                               row_count(op->out), column_count(op->out));
    return run_each_vector(queue, add_to<float>{floats(op->in), floats(op->out)}, row_count(op->out),
                           column_count(op->out));
}

/* Four neighbours are the words of one Philox counter. */
template <class T> struct normal_vector {
    struct init_normal op;
    rows<T> out;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        const int64_t first = (op.row_begin + row) * op.columns + op.column_begin + column;
        vec<float> q = {};
        for (int i = 0; i < VECTOR_WIDTH && i < left; i++) {
            uint32_t word[4];
            double a, b;
            philox_quad(op.generator, 0, static_cast<uint64_t>((first + i) / 4), word);
            const int64_t pair = (first + i) % 4 / 2 * 2;
            normal_pair(word[pair], word[pair + 1], &a, &b);
            q.at[i] = static_cast<float>((first + i) % 2 == 0 ? a : b) * op.std;
        }
        out.store(row, column, left, q);
    }
};

enum status cuda_init_normal(struct cuda_queue *queue, const struct init_normal *op)
{
    return with_type(op->out.dtype, [=](auto number) {
        using T = decltype(number);
        return run_each_vector(queue, normal_vector<T>{*op, rows_of<T>(op->out)}, op->out.dim[0],
                               op->out.dim[1]);
    });
}

template <class T> struct sum_columns {
    static constexpr int SUMS = 1;
    using row = vec<T>;
    rows<T> in;

    __device__ row read(int64_t r, int64_t column, int64_t left) const
    {
        return in.read(r, column, left);
    }

    __device__ void add(const row &from, vec<float> *sum) const
    {
        const vec<float> x = rows<T>::widened(from);
        for (int i = 0; i < VECTOR_WIDTH; i++)
            sum->at[i] += x.at[i];
    }
};

enum status cuda_column_sum(struct cuda_queue *queue, const struct column_sum *op)
{
    float *const out[] = {static_cast<float *>(op->out.data)};
    return with_type(op->in.dtype, [&](auto number) {
        using T = decltype(number);
        return run_sum_rows(queue, sum_columns<T>{rows_of<T>(op->in)}, op->in.dim[0], op->in.dim[1], out,
                            true);
    });
}
