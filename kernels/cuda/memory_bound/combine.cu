// SPDX-License-Identifier: Apache-2.0
/* Reduces the ranks' contributions in rank order: the bits of a sum depend neither on arrival order nor on
 * the topology. 16-bit types are added in fp32, and rounded once. */
#include "kernels/cuda/memory_bound/rows.h"

extern "C" {
#include "kernels/cuda/runtime/message.h"
}

template <class T> struct combine_parts {
    using number = typename computing<T>::type;
    rows<T> parts, mine, out;
    int rank, ranks;
    bool maximum;

    static __device__ number larger(number a, number b) // NaN propagates
    {
        return !(b <= a) && a == a ? b : a;
    }

    __device__ void operator()(int64_t, int64_t column, int64_t left) const
    {
        vec<number> all = {};
        for (int r = 0; r < ranks; r++) {
            vec<number> x = r == rank ? mine.load(0, column, left) : parts.load(r, column, left);
            for (int i = 0; i < VECTOR_WIDTH; i++)
                all.at[i] = r == 0 ? x.at[i] : maximum ? larger(all.at[i], x.at[i]) : all.at[i] + x.at[i];
        }
        out.store(0, column, left, all);
    }
};

template <class T> static rows<T> parts_at(const void *data, const struct cuda_combine *c)
{
    struct tensor t = tensor_2d(const_cast<void *>(data), c->dtype, c->ranks, c->count);
    t.stride[0] = c->stride;
    return rows_of<T>(t);
}

template <class T> static enum status combine(struct cuda_queue *queue, const struct cuda_combine *c)
{
    combine_parts<T> f = {parts_at<T>(c->parts, c),
                          parts_at<T>(c->mine, c),
                          parts_at<T>(c->out, c),
                          c->rank,
                          c->ranks,
                          c->maximum};
    return run_each_vector(queue, f, 1, c->count);
}

enum status cuda_combine(struct cuda_queue *queue, const struct cuda_combine *args)
{
    if (args->dtype == F64)
        return combine<double>(queue, args);
    return with_type(args->dtype, [=](auto number) { return combine<decltype(number)>(queue, args); });
}

enum status cuda_add_parts(struct cuda_queue *queue, const struct add_parts *op)
{
    struct cuda_combine sum = {};
    sum.out = op->out.data;
    sum.parts = sum.mine = op->parts.data; // the first of them
    sum.stride = op->parts.stride[0];
    sum.count = op->parts.dim[1];
    sum.ranks = static_cast<int>(op->parts.dim[0]);
    sum.dtype = op->out.dtype;
    return cuda_combine(queue, &sum);
}
