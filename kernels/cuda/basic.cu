// SPDX-License-Identifier: Apache-2.0
/* The plain ops on memory. fill and copy move words of 4 bytes, whatever the type: an element of 8 is two. */
#define NORMAL_FUNCTION static __host__ __device__ inline
#include "kernels/cuda/random.h"
#include "kernels/cuda/reduce.h"

#include "base/normal.h"

static rows<uint32_t> words(struct tensor t)
{
    int64_t each = static_cast<int64_t>(dtype_bytes(t.dtype) / sizeof(uint32_t));
    t.stride[0] *= each;
    return rows_of<uint32_t>(t);
}

static int64_t word_columns(struct tensor t)
{
    return column_count(t) * static_cast<int64_t>(dtype_bytes(t.dtype) / sizeof(uint32_t));
}

struct fill_words {
    rows<uint32_t> out;
    uint32_t word[2];

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        out.store(row, column, left, {{word[0], word[1], word[0], word[1]}});
    }
};

enum status cuda_fill(struct cuda_queue *queue, const struct fill *op)
{
    union {
        float f32;
        double f64;
        int32_t i32;
        int64_t i64;
        uint32_t word[2];
    } value = {};
    switch (op->out.dtype) {
    case F32:
        value.f32 = op->value;
        break;
    case F64:
        value.f64 = static_cast<double>(op->value);
        break;
    case I32:
        value.i32 = static_cast<int32_t>(op->value);
        break;
    case I64:
        value.i64 = static_cast<int64_t>(op->value);
        break;
    case BF16: // never come here (run.c)
    case F16:
    case DTYPE_COUNT:
        break;
    }
    int second = dtype_bytes(op->out.dtype) == 8 ? 1 : 0;
    fill_words f = {words(op->out), {value.word[0], value.word[second]}};
    return run_each_quad(queue, f, row_count(op->out), word_columns(op->out));
}

struct copy_words {
    rows<uint32_t> in, out;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        out.store(row, column, left, in.load(row, column, left));
    }
};

enum status cuda_copy(struct cuda_queue *queue, const struct copy *op)
{
    copy_words f = {words(op->in), words(op->out)};
    return run_each_quad(queue, f, row_count(op->out), word_columns(op->out));
}

template <class T> struct add_to {
    rows<T> in, out;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        quad<T> a = out.load(row, column, left), b = in.load(row, column, left);
        for (int i = 0; i < 4; i++)
            a.at[i] += b.at[i];
        out.store(row, column, left, a);
    }
};

enum status cuda_add(struct cuda_queue *queue, const struct add *op)
{
    if (op->out.dtype == F64)
        return run_each_quad(queue, add_to<double>{rows_of<double>(op->in), rows_of<double>(op->out)},
                             row_count(op->out), column_count(op->out));
    return run_each_quad(queue, add_to<float>{floats(op->in), floats(op->out)}, row_count(op->out),
                         column_count(op->out));
}

/* Four neighbours are four words of one Philox counter, or of two. */
struct normal_quad {
    struct init_normal op;
    rows<float> out;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        const int64_t first = (op.row_begin + row) * op.columns + op.column_begin + column;
        quad<float> q = {};
        for (int i = 0; i < 4 && i < left; i++) {
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
    return run_each_quad(queue, normal_quad{*op, floats(op->out)}, op->out.dim[0], op->out.dim[1]);
}

struct sum_columns {
    static constexpr int SUMS = 1;
    rows<float> in;

    __device__ void operator()(int64_t row, int64_t column, int64_t left, quad<float> *sum) const
    {
        quad<float> x = in.load(row, column, left);
        for (int i = 0; i < 4; i++)
            sum->at[i] += x.at[i];
    }
};

enum status cuda_column_sum(struct cuda_queue *queue, const struct column_sum *op)
{
    float *const out[] = {static_cast<float *>(op->out.data)};
    return run_sum_rows(queue, sum_columns{floats(op->in)}, op->in.dim[0], op->in.dim[1], out, true);
}
