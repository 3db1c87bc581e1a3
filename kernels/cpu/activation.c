// SPDX-License-Identifier: Apache-2.0
/* The functions between a block's two matrix multiplications. All three are x times a smooth step:
 *
 *     gelu       x cdf(x)                                  slope  cdf(x) + x density(x)
 *     gelu-tanh  x sigmoid(2u), u = c (x + k x^3)          slope  s + x s' 2 u'
 *     silu       x sigmoid(x)                              slope  s + x s'
 *
 * for 1/2 (1 + tanh u) = sigmoid(2u), which has no cancellation where the tanh form has.
 * In the slopes x is held within +-SLOPE_LIMIT: the step's slope is 0 long before, and 0 times an
 * overflow would be NaN. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define SLOPE_LIMIT    1e3F
#define GELU_TANH_2C   1.59576912161F // 2 sqrt(2/pi)
#define GELU_TANH_CUBE 0.044715F

VECTOR_INLINE vec step_of(enum activation_kind kind, vec x)
{
    vec unused;
    switch (kind) {
    case ACTIVATION_GELU:
        return vec_normal_cdf(x, &unused);
    case ACTIVATION_GELU_TANH:
        return vec_sigmoid(GELU_TANH_2C * (x + GELU_TANH_CUBE * x * x * x), &unused);
    case ACTIVATION_SWIGLU:
        break;
    }
    return vec_sigmoid(x, &unused);
}

/* d (x step(x)) / dx. */
VECTOR_INLINE vec slope_of(enum activation_kind kind, vec x, vec *step)
{
    vec slope, held = vec_clamp(x, SLOPE_LIMIT);
    switch (kind) {
    case ACTIVATION_GELU:
        *step = vec_normal_cdf(x, &slope);
        break;
    case ACTIVATION_GELU_TANH:
        *step = vec_sigmoid(GELU_TANH_2C * (held + GELU_TANH_CUBE * held * held * held), &slope);
        slope *= GELU_TANH_2C * (1.0F + 3.0F * GELU_TANH_CUBE * held * held);
        break;
    case ACTIVATION_SWIGLU:
        *step = vec_sigmoid(x, &slope);
        break;
    }
    return *step + held * slope;
}

VECTOR_INLINE vec forward_lanes(enum activation_kind kind, vec x, vec up)
{
    vec y = x * step_of(kind, x);
    return kind == ACTIVATION_SWIGLU ? y * up : y;
}

/* x is the gate for swiglu; `up` and dup are used by swiglu alone. */
VECTOR_INLINE vec backward_lanes(enum activation_kind kind, vec x, vec up, vec dy, vec *dup)
{
    vec step, slope = slope_of(kind, x, &step);
    if (kind != ACTIVATION_SWIGLU)
        return dy * slope;
    *dup = dy * (x * step);
    return dy * up * slope;
}

/* One row; `kind` is a constant in each call, so each has a loop of its own. */
VECTOR_INLINE void forward_row(enum activation_kind kind, const float *x, float *y, int64_t n)
{
    const bool gated = kind == ACTIVATION_SWIGLU;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec_ahead(x + i);
        vec_ahead(y + i);
        vec_store(y + i, forward_lanes(kind, vec_load(x + i), gated ? vec_load(x + n + i) : vec_all(0)));
    }
    if (i < n) {
        vec up = gated ? vec_load_part(x + n + i, n - i) : vec_all(0);
        vec_store_part(y + i, forward_lanes(kind, vec_load_part(x + i, n - i), up), n - i);
    }
}

VECTOR_INLINE void backward_row(enum activation_kind kind, const float *x, const float *dy, float *dx,
                                int64_t n)
{
    const bool gated = kind == ACTIVATION_SWIGLU;
    vec dup = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec up = gated ? vec_load(x + n + i) : vec_all(0);
        vec_ahead(x + i);
        vec_ahead(dy + i);
        vec_ahead(dx + i);
        vec_store(dx + i, backward_lanes(kind, vec_load(x + i), up, vec_load(dy + i), &dup));
        if (gated)
            vec_store(dx + n + i, dup);
    }
    if (i < n) {
        int64_t rest = n - i;
        vec up = gated ? vec_load_part(x + n + i, rest) : vec_all(0);
        vec d = backward_lanes(kind, vec_load_part(x + i, rest), up, vec_load_part(dy + i, rest), &dup);
        vec_store_part(dx + i, d, rest);
        if (gated)
            vec_store_part(dx + n + i, dup, rest);
    }
}

static void forward_task(void *context, int64_t task)
{
    const struct activation_forward *op = context;
    int64_t n = op->y.dim[1], each = rows_each_task(n), end = min_i64((task + 1) * each, op->y.dim[0]);
    for (int64_t t = task * each; t < end; t++) {
        const float *x = f32_row(op->x, t);
        float *y = f32_row(op->y, t);
        switch (op->kind) {
        case ACTIVATION_GELU:
            forward_row(ACTIVATION_GELU, x, y, n);
            break;
        case ACTIVATION_GELU_TANH:
            forward_row(ACTIVATION_GELU_TANH, x, y, n);
            break;
        case ACTIVATION_SWIGLU:
            forward_row(ACTIVATION_SWIGLU, x, y, n);
            break;
        }
    }
}

static void backward_task(void *context, int64_t task)
{
    const struct activation_backward *op = context;
    int64_t n = op->dy.dim[1], each = rows_each_task(n), end = min_i64((task + 1) * each, op->dy.dim[0]);
    for (int64_t t = task * each; t < end; t++) {
        const float *x = f32_row(op->x, t), *dy = f32_row(op->dy, t);
        float *dx = f32_row(op->dx, t);
        switch (op->kind) {
        case ACTIVATION_GELU:
            backward_row(ACTIVATION_GELU, x, dy, dx, n);
            break;
        case ACTIVATION_GELU_TANH:
            backward_row(ACTIVATION_GELU_TANH, x, dy, dx, n);
            break;
        case ACTIVATION_SWIGLU:
            backward_row(ACTIVATION_SWIGLU, x, dy, dx, n);
            break;
        }
    }
}

void cpu_activation_forward(struct device *device, const struct activation_forward *op)
{
    struct activation_forward args = *op;
    cpu_parallel(device, blocks_of(op->y.dim[0], rows_each_task(op->y.dim[1])), forward_task, &args);
}

void cpu_activation_backward(struct device *device, const struct activation_backward *op)
{
    struct activation_backward args = *op;
    cpu_parallel(device, blocks_of(op->dy.dim[0], rows_each_task(op->dy.dim[1])), backward_task, &args);
}
