// SPDX-License-Identifier: Apache-2.0
/* Activation functions. All are x times a step, which is smooth except for squared ReLU's:
 *
 *     gelu          x cdf(x)                                  slope  cdf(x) + x density(x)
 *     gelu_tanh     x sigmoid(2u), u = c (x + k x^3)          slope  s + x s' 2 u'
 *     squared_relu  x max(x, 0)                               slope  2 max(x, 0)
 *     silu          x sigmoid(x)                              slope  s + x s'
 *
 * because 1/2 (1 + tanh u) = sigmoid(2u), which avoids the cancellation of the tanh form. In the slopes x is
 * clamped to +-SLOPE_LIMIT: the step's slope is 0 well before that, and 0 times an overflow would be NaN. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define SLOPE_LIMIT    1e3F
#define GELU_TANH_2C   1.59576912161F // 2 sqrt(2/pi)
#define GELU_TANH_CUBE 0.044715F

/* Of the gate, with a gate. */
VECTOR_INLINE vec step_of(enum activation kind, vec x)
{
    vec unused;
    switch (kind) {
    case ACTIVATION_GELU:
    case ACTIVATION_GEGLU:
        return vec_normal_cdf(x, &unused);
    case ACTIVATION_GELU_TANH:
    case ACTIVATION_GEGLU_TANH:
        return vec_sigmoid(GELU_TANH_2C * (x + GELU_TANH_CUBE * x * x * x), &unused);
    case ACTIVATION_SQUARED_RELU:
        return vec_max(x, vec_all(0));
    case ACTIVATION_SWIGLU:
        break;
    }
    return vec_sigmoid(x, &unused);
}

/* d (x step(x)) / dx. */
VECTOR_INLINE vec slope_of(enum activation kind, vec x, vec *step)
{
    vec slope, held = vec_clamp(x, SLOPE_LIMIT);
    switch (kind) {
    case ACTIVATION_GELU:
    case ACTIVATION_GEGLU:
        *step = vec_normal_cdf(x, &slope);
        break;
    case ACTIVATION_GELU_TANH:
    case ACTIVATION_GEGLU_TANH:
        *step = vec_sigmoid(GELU_TANH_2C * (held + GELU_TANH_CUBE * held * held * held), &slope);
        slope *= GELU_TANH_2C * (1.0F + 3.0F * GELU_TANH_CUBE * held * held);
        break;
    case ACTIVATION_SQUARED_RELU:
        *step = vec_max(x, vec_all(0));
        return *step + *step;
    case ACTIVATION_SWIGLU:
        *step = vec_sigmoid(x, &slope);
        break;
    }
    return *step + held * slope;
}

VECTOR_INLINE vec forward_lanes(enum activation kind, vec x, vec up)
{
    vec y = x * step_of(kind, x);
    return activation_is_gated(kind) ? y * up : y;
}

/* x is the gate of a gated function; only those use `up` and dup. */
VECTOR_INLINE vec backward_lanes(enum activation kind, vec x, vec up, vec dy, vec *dup)
{
    vec step, slope = slope_of(kind, x, &step);
    if (!activation_is_gated(kind))
        return dy * slope;
    *dup = dy * (x * step);
    return dy * up * slope;
}

/* One row; `kind` is a constant at each call, so each activation has its own loop. */
VECTOR_INLINE void forward_row(enum activation kind, const float *x, const float *up, float *y, int64_t n)
{
    const bool gated = activation_is_gated(kind);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec_ahead(x + i);
        vec_ahead(y + i);
        vec_store(y + i, forward_lanes(kind, vec_load(x + i), gated ? vec_load(up + i) : vec_all(0)));
    }
    if (i < n) {
        vec u = gated ? vec_load_part(up + i, n - i) : vec_all(0);
        vec_store_part(y + i, forward_lanes(kind, vec_load_part(x + i, n - i), u), n - i);
    }
}

/* up and dup: only with a gate. */
VECTOR_INLINE void backward_row(enum activation kind, const float *x, const float *up, const float *dy,
                                float *dx, float *dup, int64_t n)
{
    const bool gated = activation_is_gated(kind);
    vec d_up = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec u = gated ? vec_load(up + i) : vec_all(0);
        vec_ahead(x + i);
        vec_ahead(dy + i);
        vec_ahead(dx + i);
        vec_store(dx + i, backward_lanes(kind, vec_load(x + i), u, vec_load(dy + i), &d_up));
        if (gated)
            vec_store(dup + i, d_up);
    }
    if (i < n) {
        int64_t rest = n - i;
        vec u = gated ? vec_load_part(up + i, rest) : vec_all(0);
        vec d = backward_lanes(kind, vec_load_part(x + i, rest), u, vec_load_part(dy + i, rest), &d_up);
        vec_store_part(dx + i, d, rest);
        if (gated)
            vec_store_part(dup + i, d_up, rest);
    }
}

/* The same columns of the second half: up, next to the gate. */
static struct segment up_of(struct segment p, int64_t columns)
{
    p.column += columns;
    return p;
}

static void forward_segment(const struct activation_forward *op, struct segment p)
{
    float buffer[3][SEGMENT_ELEMENTS];
    const float *x = row_in(op->x, p, buffer[0]), *up = NULL;
    float *y = row_out(op->y, p, buffer[2]);
    if (activation_is_gated(op->kind))
        up = row_in(op->x, up_of(p, op->y.dim[1]), buffer[1]);
    switch (op->kind) {
#define FORWARD(kind, gated)                               \
    case ACTIVATION_##kind:                                \
        forward_row(ACTIVATION_##kind, x, up, y, p.count); \
        break;
        ACTIVATIONS(FORWARD)
    }
    row_store(op->y, p, y);
}

static void forward_task(void *context, int64_t task)
{
    const struct activation_forward *op = context;
    int64_t each = rows_each_task(op->y.dim[1]), end = min_i64((task + 1) * each, op->y.dim[0]);
    for (int64_t t = task * each; t < end; t++)
        for (struct segment p = segment_first(op->y, t); p.count > 0; p = segment_next(op->y, p))
            forward_segment(op, p);
}

static void backward_segment(const struct activation_backward *op, struct segment p)
{
    float buffer[5][SEGMENT_ELEMENTS];
    const float *x = row_in(op->x, p, buffer[0]), *dy = row_in(op->dy, p, buffer[1]), *up = NULL;
    float *dx = row_out(op->dx, p, buffer[2]), *dup = NULL;
    struct segment second = up_of(p, op->dy.dim[1]);
    if (activation_is_gated(op->kind)) {
        up = row_in(op->x, second, buffer[3]);
        dup = row_out(op->dx, second, buffer[4]);
    }
    switch (op->kind) {
#define BACKWARD(kind, gated)                                         \
    case ACTIVATION_##kind:                                           \
        backward_row(ACTIVATION_##kind, x, up, dy, dx, dup, p.count); \
        break;
        ACTIVATIONS(BACKWARD)
    }
    if (dup != NULL)
        row_store(op->dx, second, dup);
    row_store(op->dx, p, dx);
}

static void backward_task(void *context, int64_t task)
{
    const struct activation_backward *op = context;
    int64_t each = rows_each_task(op->dy.dim[1]), end = min_i64((task + 1) * each, op->dy.dim[0]);
    for (int64_t t = task * each; t < end; t++)
        for (struct segment p = segment_first(op->dy, t); p.count > 0; p = segment_next(op->dy, p))
            backward_segment(op, p);
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
