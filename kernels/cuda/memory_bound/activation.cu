// SPDX-License-Identifier: Apache-2.0
/* Activation functions, each x times a step, as on the cpu (kernels/cpu/memory_bound/activation.c explains
 * these forms):
 *
 *     gelu          x cdf(x)                                  slope  cdf(x) + x density(x)
 *     gelu_tanh     x sigmoid(2u), u = c (x + k x^3)          slope  s + x s' 2 u'
 *     squared_relu  x max(x, 0)                               slope  2 max(x, 0)
 *     silu          x sigmoid(x)                              slope  s + x s'
 *
 * Per cycle, a multiprocessor loads and stores four 16-bit elements and can issue 128 thread instructions:
 * about 30 per element. erfc and division take more, so neither is used.
 *
 * In the slopes x is clamped to +-SLOPE_LIMIT: the step's slope is 0 well before that, and 0 times an
 * overflow would be NaN. */
#include "kernels/cuda/memory_bound/rows.h"

#define SLOPE_LIMIT    1e3F
#define GELU_TANH_2C   1.59576912161F // 2 sqrt(2/pi)
#define GELU_TANH_CUBE 0.044715F
#define DENSITY_0      0.39894228040143268F // normal density at 0: 1 / sqrt(2 pi)
#define HALF_LOG2_E    0.72134752044448170F // e^(-x^2/2) = 2^(-HALF_LOG2_E x^2)

static __device__ float sigmoid(float x)
{
    return reciprocal_fast(1.0F + expf(-x));
}

/* The same, and s (1 - s), from one exponential and one division, without cancellation for s near 1: with e =
 * e^-|x| and r = 1 / (1 + e) they are r or e r, and e r r. */
static __device__ float sigmoid_and_slope(float x, float *slope)
{
    const float e = expf(-fabsf(x)), r = reciprocal_fast(1.0F + e);
    *slope = e * r * r;
    return x < 0.0F ? e * r : r;
}

/* The cumulative distribution of the standard normal. With a = |x|, cdf(-a) = 2^-(1 + a q(a)): q of degree 9,
 * fitted on [0, 7] with an error of the tail of at most 3e-9 absolute and 1e-4 relative; beyond 7 it
 * decreases monotonically. With all roundings and exp2_fast's 2^-22 the error is 3.1 units of 2^-24, against
 * the cpu's four; near 0, where a quotient times an exponential would be worst, q contributes little. */
static __device__ float normal_cdf(float x)
{
    const float q_of[] = {2.57173145e-8F, -8.03759747e-7F, 1.06025191e-5F, -7.52914784e-5F, 2.77514104e-4F,
                          3.30193961e-6F, -6.95186201e-3F, 5.24460971e-2F, 0.459218711F,    1.15110445F};
    const float a = fabsf(x);
    float q = q_of[0];
    UNROLL_ALL
    for (int i = 1; i < 10; i++)
        q = fmaf(q, a, q_of[i]);
    const float tail = exp2_fast(fmaf(-a, q, -1.0F));
    return x < 0.0F ? tail : 1.0F - tail;
}

template <enum activation KIND> __device__ float step_of(float x)
{
    if (KIND == ACTIVATION_GELU || KIND == ACTIVATION_GEGLU)
        return normal_cdf(x);
    if (KIND == ACTIVATION_GELU_TANH || KIND == ACTIVATION_GEGLU_TANH)
        return sigmoid(GELU_TANH_2C * (x + GELU_TANH_CUBE * x * x * x));
    if (KIND == ACTIVATION_SQUARED_RELU)
        return fmaxf(x, 0.0F);
    static_assert(ACTIVATION_KINDS == 6, "a case for each activation, here and in slope_of()");
    return sigmoid(x);
}

/* d (x step(x)) / dx. */
template <enum activation KIND> __device__ float slope_of(float x, float *step)
{
    const float held = fminf(fmaxf(x, -SLOPE_LIMIT), SLOPE_LIMIT);
    float slope;
    if (KIND == ACTIVATION_GELU || KIND == ACTIVATION_GEGLU) {
        *step = normal_cdf(x);
        slope = DENSITY_0 * exp2_fast(-HALF_LOG2_E * held * held);
    } else if (KIND == ACTIVATION_GELU_TANH || KIND == ACTIVATION_GEGLU_TANH) {
        const float two_u = GELU_TANH_2C * (held + GELU_TANH_CUBE * held * held * held);
        *step = sigmoid_and_slope(two_u, &slope);
        slope *= GELU_TANH_2C * (1.0F + 3.0F * GELU_TANH_CUBE * held * held);
    } else if (KIND == ACTIVATION_SQUARED_RELU) {
        *step = fmaxf(x, 0.0F);
        return *step + *step;
    } else {
        *step = sigmoid_and_slope(x, &slope);
    }
    return *step + held * slope;
}

template <enum activation KIND, class T> struct activate {
    rows<T> x, up, y;
    struct in {
        vec<T> x, up;
    };

    __device__ in read(int64_t row, int64_t column, int64_t left) const
    {
        in p = {};
        p.x = x.read(row, column, left);
        if (ACTIVATION_HAS_GATE(KIND))
            p.up = up.read(row, column, left);
        return p;
    }

    __device__ void write(const in &p, int64_t row, int64_t column, int64_t left) const
    {
        vec<float> q = rows<T>::widened(p.x);
        const vec<float> u = rows<T>::widened(p.up);
        for (int i = 0; i < VECTOR_WIDTH; i++) {
            q.at[i] *= step_of<KIND>(q.at[i]);
            if (ACTIVATION_HAS_GATE(KIND))
                q.at[i] *= u.at[i];
        }
        y.store(row, column, left, q);
    }
};

template <enum activation KIND, class T> struct activate_back {
    rows<T> x, up, dy, dx, dup;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        vec<float> q = x.load(row, column, left), g = dy.load(row, column, left), u = {}, du = {};
        if (ACTIVATION_HAS_GATE(KIND))
            u = up.load(row, column, left);
        for (int i = 0; i < VECTOR_WIDTH; i++) {
            float step, slope = slope_of<KIND>(q.at[i], &step);
            if (ACTIVATION_HAS_GATE(KIND)) {
                du.at[i] = g.at[i] * (q.at[i] * step);
                q.at[i] = g.at[i] * u.at[i] * slope;
            } else {
                q.at[i] = g.at[i] * slope;
            }
        }
        dx.store(row, column, left, q);
        if (ACTIVATION_HAS_GATE(KIND))
            dup.store(row, column, left, du);
    }
};

/* The second half of a gated row; absent for the other kinds. */
template <class T> static rows<T> second_half(struct tensor t, int64_t columns)
{
    return t.dim[1] == columns ? rows<T>{nullptr, 0, false}
                               : rows_of<T>(tensor_columns(t, columns, 2 * columns));
}

template <enum activation KIND>
static enum status forward(struct cuda_queue *queue, const struct activation_forward *op)
{
    int64_t columns = op->y.dim[1];
    return with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        activate<KIND, T> f = {rows_of<T>(op->x), second_half<T>(op->x, columns), rows_of<T>(op->y)};
        return run_each_two_vectors(queue, f, op->y.dim[0], columns);
    });
}

template <enum activation KIND>
static enum status backward(struct cuda_queue *queue, const struct activation_backward *op)
{
    int64_t columns = op->dy.dim[1];
    return with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        activate_back<KIND, T> f = {rows_of<T>(op->x), second_half<T>(op->x, columns), rows_of<T>(op->dy),
                                    rows_of<T>(op->dx), second_half<T>(op->dx, columns)};
        return run_each_vector(queue, f, op->dy.dim[0], columns);
    });
}

enum status cuda_activation_forward(struct cuda_queue *queue, const struct activation_forward *op)
{
    switch (op->kind) {
#define FORWARD(kind, gated) \
    case ACTIVATION_##kind:  \
        return forward<ACTIVATION_##kind>(queue, op);
        ACTIVATIONS(FORWARD)
    }
    return fail(BAD_ARGUMENT, "activation: kind %d", (int)op->kind);
}

enum status cuda_activation_backward(struct cuda_queue *queue, const struct activation_backward *op)
{
    switch (op->kind) {
#define BACKWARD(kind, gated) \
    case ACTIVATION_##kind:   \
        return backward<ACTIVATION_##kind>(queue, op);
        ACTIVATIONS(BACKWARD)
    }
    return fail(BAD_ARGUMENT, "activation: kind %d", (int)op->kind);
}
