// SPDX-License-Identifier: Apache-2.0
/* AdamW in one pass over all parameters that a rank owns: the cpu's arithmetic in the cpu's order, with the
 * same bits of stochastic rounding.
 *
 * A thread handles four neighbouring elements and then another four, so that a warp's stores are contiguous.
 * Eight floats per thread (rows.h) would be stored in two accesses, each writing half of every 32-byte
 * sector; and nearly all stores here are fp32. */
#include "kernels/cuda/memory_bound/members.h"
#include "kernels/cuda/memory_bound/random.h"
#include "kernels/cuda/memory_bound/rows.h"

enum { THREADS = 256, QUAD = 4, QUADS = 2 };
struct alignas(16) quad {
    float at[QUAD];
};
template <class T> struct alignas(QUAD * sizeof(T)) stored_quad {
    T at[QUAD];
};

static __device__ inline float widen(float x)
{
    return x;
}

template <class T> static __device__ inline stored_quad<T> rounded(const quad &q)
{
    const uint32_t pair[] = {narrow_pair<T>(q.at[0], q.at[1]), narrow_pair<T>(q.at[2], q.at[3])};
    stored_quad<T> p;
    memcpy(&p, pair, sizeof p);
    return p;
}
template <> __device__ inline stored_quad<float> rounded<float>(const quad &q)
{
    return {{q.at[0], q.at[1], q.at[2], q.at[3]}};
}

template <class T> struct vector {
    T *data;
    bool wide; // quads are aligned to their size

    /* Loads elements [first, first + QUAD); only the first `left` exist, the others are 0. */
    __device__ quad load(int64_t first, int64_t left) const
    {
        stored_quad<T> p = {};
        if (wide && left >= QUAD) {
            p = *reinterpret_cast<const stored_quad<T> *>(data + first);
        } else {
            UNROLL_ALL
            for (int i = 0; i < QUAD; i++)
                if (i < left)
                    p.at[i] = data[first + i];
        }
        return {{widen(p.at[0]), widen(p.at[1]), widen(p.at[2]), widen(p.at[3])}};
    }

    __device__ void store(int64_t first, int64_t left, const quad &q) const
    {
        const stored_quad<T> p = rounded<T>(q);
        if (wide && left >= QUAD) {
            *reinterpret_cast<stored_quad<T> *>(data + first) = p;
        } else {
            UNROLL_ALL
            for (int i = 0; i < QUAD; i++)
                if (i < left)
                    data[first + i] = p.at[i];
        }
    }
};

template <class T> static vector<T> vector_of(const struct tensor &t)
{
    return {static_cast<T *>(t.data), reinterpret_cast<uintptr_t>(t.data) % (QUAD * sizeof(T)) == 0};
}

/* The formulas are in kernels/ops.h; the order of the operations is the CPU's. */
static __device__ inline void adamw_step(const struct adamw_hyper &h, float weight_decay,
                                         const quad &gradient, quad &w, quad &m, quad &v)
{
    for (int i = 0; i < QUAD; i++) {
        const float g = gradient.at[i] * h.gradient_scale;
        m.at[i] = m.at[i] - h.one_minus_beta1 * m.at[i] + h.one_minus_beta1 * g;
        v.at[i] = v.at[i] - h.one_minus_beta2 * v.at[i] + h.one_minus_beta2 * g * g;
        const float step = (m.at[i] / h.correction1) / (sqrtf(v.at[i] / h.correction2) + h.epsilon);
        w.at[i] -= h.lr * (step + weight_decay * w.at[i]);
    }
}

/* bf16_of_stochastic(), in fp32: the conversion when storing is then exact, or round-to-nearest. */
static __device__ inline float round_stochastic(float x, uint32_t half)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffU) <= 0x7f7f0000U)
        bits = (bits + half) & 0xffff0000U;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Stores an fp32 weight, with a rounded copy for the layers. */
template <class T> struct keep_in_fp32 {
    using weight_type = float;
    vector<T> working;

    explicit keep_in_fp32(const struct adamw &op) : working(vector_of<T>(op.working))
    {
    }
    keep_in_fp32() = default;

    __device__ void finish(int64_t first, int64_t left, uint64_t step, quad &w) const
    {
        (void)step;
        if (working.data != nullptr)
            working.store(first, left, w);
    }
};

/* Without master weights. */
struct round_to_bf16 {
    using weight_type = bf16;
    struct stochastic at;

    explicit round_to_bf16(const struct adamw &op) : at(op.stochastic)
    {
    }
    round_to_bf16() = default;

    __device__ void finish(int64_t first, int64_t left, uint64_t step, quad &w) const
    {
        (void)left;
        int64_t drawn = -1;
        uint32_t word[4] = {};
        for (int i = 0; i < QUAD; i++) {
            const int64_t e = at.first + first + i;
            const int64_t number = at.begin + e / at.width * at.columns + e % at.width;
            if (number / 8 != drawn)
                philox_quad(at.generator, step, static_cast<uint64_t>(number / 8), word);
            drawn = number / 8;
            uint32_t mine = 0;
            for (int k = 0; k < 4; k++) // constant indices keep the words in registers
                mine = k == number % 8 / 2 ? word[k] : mine;
            w.at[i] = round_stochastic(w.at[i], mine >> 16 * (number % 2) & 0xffffU);
        }
    }
};

template <class End> struct adamw_slice {
    vector<typename End::weight_type> weight;
    vector<float> gradient, m, v;
    const struct adamw_hyper *hyper;
    int64_t count;
    bool decay;
    End end;

    explicit adamw_slice(const struct adamw &op)
        : weight(vector_of<typename End::weight_type>(op.weight)), gradient(vector_of<float>(op.gradient)),
          m(vector_of<float>(op.m)), v(vector_of<float>(op.v)), hyper(op.hyper), count(op.weight.dim[0]),
          decay(op.decay), end(op)
    {
    }
    adamw_slice() = default;
};

template <class End>
static __global__ void __launch_bounds__(THREADS)
    adamw_update(const __grid_constant__ members<adamw_slice<End>> all)
{
    unsigned mine = blockIdx.x;
    const adamw_slice<End> &op = all.of_block(mine);
    const struct adamw_hyper h = *op.hyper;
    if (h.skip != 0.0F)
        return;
    const int64_t begin = QUAD * (static_cast<int64_t>(mine) * QUADS * THREADS + threadIdx.x);
    quad w[QUADS], g[QUADS], m[QUADS], v[QUADS];
    UNROLL_ALL
    for (int k = 0; k < QUADS; k++) { // all loads are in flight before the first is used
        const int64_t first = begin + k * QUAD * THREADS, left = op.count - first;
        w[k] = op.weight.load(first, left);
        g[k] = op.gradient.load(first, left);
        m[k] = op.m.load(first, left);
        v[k] = op.v.load(first, left);
    }
    UNROLL_ALL
    for (int k = 0; k < QUADS; k++) {
        const int64_t first = begin + k * QUAD * THREADS, left = op.count - first;
        adamw_step(h, op.decay ? h.weight_decay : 0.0F, g[k], w[k], m[k], v[k]);
        op.end.finish(first, left, h.step, w[k]);
        op.weight.store(first, left, w[k]);
        op.m.store(first, left, m[k]);
        op.v.store(first, left, v[k]);
    }
}

template <class End> static enum status launch_slices(struct cuda_queue *queue, const struct adamw_list *op)
{
    return launch_members<adamw_slice<End>>(
        op->count,
        [=](int64_t i, adamw_slice<End> &one) {
            one = adamw_slice<End>(op->at[i]);
            return blocks_of(one.count, QUADS * QUAD * THREADS);
        },
        [=](const members<adamw_slice<End>> &all, unsigned blocks) {
            return LAUNCH(queue, adamw_update<End>, dim3(blocks), THREADS, 0, all);
        });
}

enum status cuda_adamw(struct cuda_queue *queue, const struct adamw_list *op)
{
    if (op->at[0].weight.dtype == BF16)
        return launch_slices<round_to_bf16>(queue, op);
    const struct tensor working = op->at[0].working;
    return with_type(working.data != nullptr ? working.dtype : F32,
                     [=](auto number) { return launch_slices<keep_in_fp32<decltype(number)>>(queue, op); });
}
