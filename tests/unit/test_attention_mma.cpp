// SPDX-License-Identifier: Apache-2.0
/* Attention on tensor cores, in software (kernels/cuda/mma.h), against S x S matrices in double precision:
 * tiles that are full, cut and hidden, groups, documents, dropout. What a bound is made of:
 *
 *     u     what one rounding to bf16 or f16 can do, 2^-8 or 2^-11 of a number: to weights, to their
 * gradients, and to results TINY  the same for f16's numbers without a leading one, absolutely: 2^-25 rest
 * all that is done in fp32; below u by so much that a simple bound will do */
#include "kernels/cuda/attention.h"

extern "C" {
#include "tests/support/ops_stand.h"
#include "tests/support/reference_ops.h"
#include "tests/support/sanitized.h"
}

#include <criterion/criterion.h>

struct shape {
    int64_t batch, sequence, heads, groups, head_dim;
    int documents; // length of each, 0: none given
    float dropout;
};

/* 128 rows to a block, 32 or 64 columns to a tile. */
static const struct shape shapes[] = {
    {1, 1, 1, 1, 128, 0, 0.0F},    {2, 64, 2, 1, 64, 0, 0.0F},    {1, 210, 2, 1, 64, 70, 0.0F},
    {1, 132, 2, 2, 128, 0, 0.25F}, {1, 130, 4, 2, 64, 50, 0.25F}, {2, 133, 2, 1, 128, 1, 0.0F},
    {1, 164, 3, 1, 64, 0, 0.25F},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

template <class T> static double unit()
{
    return sizeof(T) == 2 && widen(T{0x3f80}) == 1.0F ? 0x1p-8 : 0x1p-11;
}

static const double TINY = 0x1p-25;

static tensor columns_of(tensor t, int64_t begin, int64_t end)
{
    return tensor_columns(t, begin, end);
}

/* The arrays of one case, as the model lays them: q, k and v in one matrix, their gradients in another. */
template <class T> struct attention_case {
    struct stand stand;
    struct shape shape;
    int64_t tokens, width, group_width; // A*D, G*D
    struct attention_backward op;       // and in it forward
    float *delta;
    reference_attention reference;
    double *dout, *weights, *lse, *out, *dq, *dk, *dv;
    struct cuda_queue queue;

    static tensor narrow_matrix(struct stand *stand, const char *name, int64_t rows, int64_t columns)
    {
        uint16_t *data = stand_shorts(stand, rows * columns);
        const float *from = name != nullptr ? stand_normals(stand, name, rows * columns, 1.0) : nullptr;
        for (int64_t i = 0; from != nullptr && i < rows * columns; i++)
            data[i] = narrow<T>(from[i]).bits;
        return tensor_2d(data, unit<T>() == 0x1p-8 ? BF16 : F16, rows, columns);
    }

    double *widened(const tensor &t)
    {
        double *out = stand_doubles(&stand, t.dim[0] * t.dim[1]);
        for (int64_t i = 0; i < t.dim[0] * t.dim[1]; i++)
            out[i] = static_cast<double>(
                widen(static_cast<const T *>(t.data)[i / t.dim[1] * t.stride[0] + i % t.dim[1]]));
        return out;
    }

    void lay_out()
    {
        const int64_t a = width, g = a + group_width, columns = g + group_width;
        const tensor qkv = narrow_matrix(&stand, "qkv", tokens, columns),
                     gradient = narrow_matrix(&stand, nullptr, tokens, columns);
        struct attention_forward &f = op.forward;
        f.batch = shape.batch;
        f.sequence = shape.sequence;
        f.head_dim = shape.head_dim;
        f.scale = 1.0F / sqrtf(static_cast<float>(shape.head_dim));
        f.q = columns_of(qkv, 0, a);
        f.k = columns_of(qkv, a, g);
        f.v = columns_of(qkv, g, columns);
        f.out = narrow_matrix(&stand, nullptr, tokens, a);
        f.lse = tensor_2d(stand_floats(&stand, shape.heads * tokens), F32, shape.heads, tokens);
        op.dout = narrow_matrix(&stand, "dout", tokens, a);
        op.dq = columns_of(gradient, 0, a);
        op.dk = columns_of(gradient, a, g);
        op.dv = columns_of(gradient, g, columns);
        delta = stand_floats(&stand, shape.heads * tokens);
        int64_t *sample = stand_longs(&stand, tokens);
        int32_t *document = stand_ints(&stand, tokens);
        for (int64_t t = 0; t < tokens; t++) {
            sample[t] = 1000 + t / shape.sequence;
            document[t] =
                shape.documents > 0 ? static_cast<int32_t>(t % shape.sequence / shape.documents) : 0;
        }
        f.document = shape.documents > 0 ? document : nullptr;
        f.dropout.probability = shape.dropout;
        f.dropout.generator = philox_named(7, "attention");
        f.dropout.sample = sample;
        f.dropout.columns = shape.sequence;
        f.dropout.column_begin = 3; // this rank's heads begin at the fourth
    }

    void make_reference()
    {
        const struct attention_forward &f = op.forward;
        const int64_t pairs = shape.batch * shape.heads * shape.sequence * shape.sequence;
        double *factor = nullptr;
        if (shape.dropout > 0.0F) {
            factor = stand_doubles(&stand, pairs);
            for (int64_t i = 0; i < pairs; i++)
                factor[i] =
                    reference_attention_dropout(&f, i / shape.sequence / shape.sequence / shape.heads,
                                                i / shape.sequence / shape.sequence % shape.heads,
                                                i / shape.sequence % shape.sequence, i % shape.sequence);
        }
        reference = {shape.batch,  shape.sequence, shape.heads,
                     shape.groups, shape.head_dim, static_cast<double>(f.scale),
                     f.document,   widened(f.q),   widened(f.k),
                     widened(f.v), factor};
        dout = widened(op.dout);
        weights = stand_doubles(&stand, pairs);
        lse = stand_doubles(&stand, shape.heads * tokens);
        out = stand_doubles(&stand, tokens * width);
        dq = stand_doubles(&stand, tokens * width);
        dk = stand_doubles(&stand, tokens * group_width);
        dv = stand_doubles(&stand, tokens * group_width);
        reference_attention_weights(&reference, weights, lse);
        reference_attention_forward(&reference, out);
        reference_attention_backward(&reference, dout, dq, dk, dv);
    }

    explicit attention_case(const struct shape &s, const char *order)
        : stand(stand_open(1)), shape(s), tokens(s.batch * s.sequence), width(s.heads * s.head_dim),
          group_width(s.groups * s.head_dim), op(), queue()
    {
        cudaStreamCreateWithFlags(&queue.stream, 0);
        emulator_order(emulator_of(queue.stream), order);
        lay_out();
    }
    ~attention_case()
    {
        cudaStreamDestroy(queue.stream);
        stand_close(&stand);
    }

    void run_forward()
    {
        cr_assert(attention_suits_mma(&op.forward));
        cr_assert_eq(attention_mma_forward(&queue, &op.forward), OK);
    }

    /* out, lse and delta that backward reads are the reference's, rounded: forward's errors stay out of this.
     */
    void run_backward()
    {
        for (int64_t i = 0; i < tokens * width; i++)
            static_cast<T *>(op.forward.out.data)[i] = narrow<T>(static_cast<float>(out[i]));
        for (int64_t i = 0; i < shape.heads * tokens; i++) {
            static_cast<float *>(op.forward.lse.data)[i] = static_cast<float>(lse[i]);
            double sum = 0.0;
            for (int64_t j = 0; j < shape.head_dim; j++) {
                const int64_t at = (i % tokens * shape.heads + i / tokens) * shape.head_dim + j;
                sum += dout[at] * static_cast<double>(widen(static_cast<T *>(op.forward.out.data)[at]));
            }
            delta[i] = static_cast<float>(sum);
        }
        cr_assert(attention_suits_mma(&op));
        cr_assert_eq(attention_mma_backward(&queue, &op, delta), OK);
    }

    /* fp32's part, relatively, of a weight e^(s - lse): its score's D products, scaling and distance to lse,
     * e^x itself (4 units), and for forward the sum of S and its shrinking at every tile. */
    double rest(int64_t b, int64_t h, int64_t s, int64_t r) const
    {
        const int64_t d = shape.head_dim, t = b * shape.sequence, each = shape.heads / shape.groups;
        double size = 0.0;
        for (int64_t i = 0; i < d; i++)
            size += fabs(reference.q[((t + s) * shape.heads + h) * d + i] *
                         reference.k[((t + r) * shape.groups + h / each) * d + i]);
        const double n = static_cast<double>(shape.sequence);
        return UNIT * (static_cast<double>(d + 6) * size * reference.scale +
                       4.0 * fabs(lse[h * tokens + t + s]) + 8.0 * n / 32.0 + 3.0 * n + 16.0);
    }

    int64_t outside(const tensor &got, const double *want, const double *bound, const char *what)
    {
        const double *values = widened(got);
        int64_t wrong = 0;
        double worst = 0.0;
        for (int64_t i = 0; i < got.dim[0] * got.dim[1]; i++) {
            const double error = fabs(values[i] - want[i]);
            wrong += !(error <= bound[i]);
            worst = fmax(worst, bound[i] > 0.0 ? error / bound[i] : 0.0);
        }
        if (getenv("SHOW_WORST") != nullptr)
            fprintf(stderr, "%s: largest error %.3f of its bound\n", what, worst);
        return wrong;
    }

    double *zeros(int64_t count)
    {
        double *x = stand_doubles(&stand, count);
        memset(x, 0, static_cast<size_t>(count) * sizeof *x);
        return x;
    }

    /* out: each weight rounded, on its value; then out itself. */
    int64_t forward_outside()
    {
        const double u = unit<T>();
        double *bound = zeros(tokens * width);
        int64_t wrong = 0, pair = 0;
        for (int64_t row = 0; row < shape.batch * shape.heads * shape.sequence; row++) {
            const int64_t s = row % shape.sequence, h = row / shape.sequence % shape.heads,
                          b = row / shape.sequence / shape.heads, token = b * shape.sequence + s,
                          at = (token * shape.heads + h) * shape.head_dim;
            double common = 0.0;
            pair = row * shape.sequence;
            for (int64_t r = 0; r <= s; r++)
                common += weights[pair + r] * rest(b, h, s, r);
            for (int64_t r = 0; r <= s; r++) {
                const double factor = reference.factor != nullptr ? reference.factor[pair + r] : 1.0,
                             error = weights[pair + r] * (u + common + rest(b, h, s, r)) +
                                     (weights[pair + r] > 0.0 ? TINY : 0.0);
                for (int64_t j = 0; j < shape.head_dim; j++)
                    bound[at + j] += factor * error *
                                     fabs(reference.v[((b * shape.sequence + r) * shape.groups +
                                                       h / (shape.heads / shape.groups)) *
                                                          shape.head_dim +
                                                      j]);
            }
            for (int64_t j = 0; j < shape.head_dim; j++)
                bound[at + j] = (bound[at + j] + u * fabs(out[at + j])) * (1.0 + 4.0 * u) + TINY;
            const double got =
                static_cast<double>(static_cast<float *>(op.forward.lse.data)[h * tokens + token]);
            wrong += !(fabs(got - lse[h * tokens + token]) <= common);
        }
        return wrong + outside(op.forward.out, out, bound, "out");
    }

    /* dq, dk: each ds rounded, delta from out as it was rounded; dv: each weight rounded; then the results.
     */
    int64_t backward_outside()
    {
        const double u = unit<T>(), scale = reference.scale;
        double *q_bound = zeros(tokens * width), *k_bound = zeros(tokens * group_width),
               *v_bound = zeros(tokens * group_width);
        const int64_t d = shape.head_dim, s_count = shape.sequence;
        for (int64_t pair = 0; pair < shape.batch * shape.heads * s_count * s_count; pair++) {
            const int64_t r = pair % s_count, s = pair / s_count % s_count,
                          h = pair / s_count / s_count % shape.heads,
                          b = pair / s_count / s_count / shape.heads,
                          group = h / (shape.heads / shape.groups),
                          q_at = ((b * s_count + s) * shape.heads + h) * d,
                          k_at = ((b * s_count + r) * shape.groups + group) * d;
            const double p = weights[pair],
                         factor = reference.factor != nullptr ? reference.factor[pair] : 1.0;
            if (p == 0.0)
                continue;
            double dp = 0.0, dp_size = 0.0, at_delta = 0.0, delta_size = 0.0;
            for (int64_t i = 0; i < d; i++) {
                dp += dout[q_at + i] * reference.v[k_at + i] * factor;
                dp_size += fabs(dout[q_at + i] * reference.v[k_at + i]) * factor;
                at_delta += dout[q_at + i] * out[q_at + i];
                delta_size += fabs(dout[q_at + i] * out[q_at + i]);
            }
            const double fp32 = rest(b, h, s, r) + UNIT * static_cast<double>(3 * shape.heads * s_count);
            const double ds = p * fabs(dp - at_delta),
                         ds_error = ds * (u + fp32) + p * delta_size * u +
                                    p * UNIT * static_cast<double>(d + 4) * (dp_size + delta_size) + TINY;
            for (int64_t i = 0; i < d; i++) {
                q_bound[q_at + i] += scale * fabs(reference.k[k_at + i]) * ds_error;
                k_bound[k_at + i] += scale * fabs(reference.q[q_at + i]) * ds_error;
                v_bound[k_at + i] += factor * fabs(dout[q_at + i]) * (p * (u + fp32) + TINY);
            }
        }
        const auto rounded = [&](double *bound, const double *result, int64_t count) {
            for (int64_t i = 0; i < count; i++)
                if (bound[i] > 0.0) // a pair that is masked has no share at all
                    bound[i] = (bound[i] + u * fabs(result[i])) * (1.0 + 4.0 * u) + TINY;
        };
        rounded(q_bound, dq, tokens * width);
        rounded(k_bound, dk, tokens * group_width);
        rounded(v_bound, dv, tokens * group_width);
        return outside(op.dq, dq, q_bound, "dq") + outside(op.dk, dk, k_bound, "dk") +
               outside(op.dv, dv, v_bound, "dv");
    }
};

template <class T> static void compare(int i)
{
    attention_case<T> c(shapes[i], "7");
    c.make_reference();
    c.run_forward();
    cr_expect_eq(c.forward_outside(), 0, "shape %d", i);
    c.run_backward();
    cr_expect_eq(c.backward_outside(), 0, "shape %d", i);
    cr_expect_eq(emulator_bank_conflicts(emulator_of(c.queue.stream)), 0, "shape %d", i);
    cr_expect(stand_shorts_are_guarded(static_cast<uint16_t *>(c.op.forward.out.data), c.tokens * c.width));
    cr_expect(stand_shorts_are_guarded(static_cast<uint16_t *>(c.op.dq.data),
                                       c.tokens * (c.width + 2 * c.group_width)));
}

Test(attention_mma, is_attention)
{
    for (int i = 0; i < (UNDER_SANITIZER ? 3 : SHAPES); i++)
        compare<bf16>(i);
    compare<f16>(4);
}

/* The order in which threads and blocks take their turns is not in the bits. */
Test(attention_mma, bits_are_the_same_in_every_order)
{
    const shape s = {1, 150, 2, 1, 64, 40, 0.25F};
    attention_case<bf16> a(s, "forward"), b(s, "reverse");
    a.make_reference();
    b.make_reference();
    for (attention_case<bf16> *c : {&a, &b}) {
        c->run_forward();
        c->run_backward();
    }
    const size_t row = static_cast<size_t>(a.width + 2 * a.group_width) * sizeof(bf16);
    cr_expect_eq(memcmp(a.op.dq.data, b.op.dq.data, static_cast<size_t>(a.tokens) * row), 0);
}

/* The bounds tell these apart from attention. */
Test(attention_mma, bounds_see_planted_faults)
{
    const shape s = {1, 70, 4, 2, 64, 30, 0.25F};
    for (int fault = 0; fault < 4; fault++) {
        attention_case<bf16> c(s, "7");
        c.make_reference();
        if (fault == 0)
            c.op.forward.scale *= 1.05F;
        if (fault == 1) // the mask of another head
            c.op.forward.dropout.column_begin = 2;
        if (fault == 2) // documents forgotten
            c.op.forward.document = nullptr;
        if (fault == 3) // the wrong group, for two of four heads
            c.op.forward.k.data = static_cast<bf16 *>(c.op.forward.k.data) + 64;
        c.run_forward();
        cr_expect_gt(c.forward_outside(), 0, "forward, fault %d was not seen", fault);
        c.run_backward();
        cr_expect_gt(c.backward_outside(), 0, "backward, fault %d was not seen", fault);
    }
}
