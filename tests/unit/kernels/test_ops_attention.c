// SPDX-License-Identifier: Apache-2.0
/* Attention against S x S matrices in double precision: odd heads, groups, documents, dropout, sequence
 * lengths on either side of a block. */
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

struct shape {
    int64_t batch, sequence, heads, groups, head_dim;
    int documents; // length of each, 0: none
    float dropout;
    struct attention_variant variant;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 0, 0.0F, {0}},
    {2, 7, 2, 1, 3, 0, 0.0F, {0}},
    {1, 33, 3, 3, 17, 0, 0.0F, {0}},
    {2, 64, 2, 2, 64, 0, 0.0F, {0}},
    {1, 65, 4, 2, 16, 0, 0.0F, {0}},
    {1, 130, 2, 1, 40, 0, 0.0F, {0}},
    {2, 100, 4, 2, 24, 23, 0.0F, {0}},
    {1, 200, 1, 1, 8, 70, 0.0F, {0}},
    {1, 70, 2, 2, 80, 1, 0.0F, {0}},
    {2, 68, 2, 1, 32, 0, 0.25F, {0}},
    {1, 77, 2, 2, 16, 30, 0.5F, {0}},
    {1, 20, 1, 1, 256, 0, 0.0F, {0}},
    {1, 129, 2, 2, 128, 0, 0.1F, {0}},
    {1, 20, 1, 1, 4, 0, 0.0F, {.window = 1}},
    {2, 200, 2, 1, 24, 0, 0.0F, {.window = 64}},
    {1, 200, 4, 2, 16, 90, 0.25F, {.window = 65}},
    {1, 150, 2, 2, 32, 0, 0.1F, {.window = 30}},
    {1, 70, 1, 1, 8, 0, 0.0F, {.window = 70}},
    {1, 130, 4, 2, 16, 0, 0.0F, {.alibi_heads = 16, .alibi_begin = 3}},
    {2, 90, 3, 3, 24, 40, 0.1F, {.window = 50, .alibi_heads = 12, .alibi_begin = 6}},
    {1, 130, 4, 2, 16, 0, 0.0F, {.softcap = 1.5F}},
    {1, 100, 2, 2, 24, 0, 0.0F, {.softcap = 50.0F}},
    {2, 75, 2, 1, 8, 30, 0.2F, {.window = 40, .alibi_heads = 4, .alibi_begin = 1, .softcap = 0.7F}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct attention_case {
    struct fixture fixture;
    struct shape shape;
    int64_t tokens, width, group_width; // A*D, G*D
    struct attention_forward op;
    struct attention_backward backward;
    struct reference_attention reference;
    double *weights, *lse, *out; // of the reference
    float *dout;
};

/* q, k and v are columns of one fused matrix, as in the model; the gradients too. */
static void lay_out(struct attention_case *c)
{
    int64_t columns = c->width + 2 * c->group_width, a = c->width, g = a + c->group_width;
    struct tensor qkv =
        tensor_2d(fixture_normals(&c->fixture, "qkv", c->tokens * columns, 1.0), F32, c->tokens, columns);
    struct tensor gradient =
        tensor_2d(fixture_floats(&c->fixture, c->tokens * columns), F32, c->tokens, columns);
    c->op.q = tensor_columns(qkv, 0, a);
    c->op.k = tensor_columns(qkv, a, g);
    c->op.v = tensor_columns(qkv, g, columns);
    c->op.out = tensor_2d(fixture_floats(&c->fixture, c->tokens * a), F32, c->tokens, a);
    c->op.lse =
        tensor_2d(fixture_floats(&c->fixture, c->shape.heads * c->tokens), F32, c->shape.heads, c->tokens);
    c->dout = fixture_normals(&c->fixture, "dout", c->tokens * a, 1.0);
    c->backward = (struct attention_backward){.dout = tensor_2d(c->dout, F32, c->tokens, a),
                                              .dq = tensor_columns(gradient, 0, a),
                                              .dk = tensor_columns(gradient, a, g),
                                              .dv = tensor_columns(gradient, g, columns)};
}

static double *columns_of(struct fixture *fixture, struct tensor t)
{
    double *out = fixture_doubles(fixture, t.dim[0] * t.dim[1]);
    for (int64_t i = 0; i < t.dim[0]; i++)
        for (int64_t j = 0; j < t.dim[1]; j++)
            out[i * t.dim[1] + j] = (double)((const float *)t.data)[i * t.stride[0] + j];
    return out;
}

static int64_t pairs(const struct shape *s)
{
    return s->batch * s->heads * s->sequence * s->sequence;
}

static void make_reference(struct attention_case *c)
{
    const struct shape *s = &c->shape;
    c->reference = (struct reference_attention){.batch = s->batch,
                                                .sequence = s->sequence,
                                                .heads = s->heads,
                                                .groups = s->groups,
                                                .head_dim = s->head_dim,
                                                .variant = s->variant,
                                                .scale = (double)c->op.scale,
                                                .document = c->op.document,
                                                .q = columns_of(&c->fixture, c->op.q),
                                                .k = columns_of(&c->fixture, c->op.k),
                                                .v = columns_of(&c->fixture, c->op.v)};
    if (s->dropout > 0.0F) {
        double *factor = fixture_doubles(&c->fixture, pairs(s)), *at = factor;
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t h = 0; h < s->heads; h++)
                for (int64_t i = 0; i < s->sequence; i++)
                    for (int64_t r = 0; r < s->sequence; r++)
                        *at++ = reference_attention_dropout(&c->op, b, h, i, r);
        c->reference.factor = factor;
    }
    c->weights = fixture_doubles(&c->fixture, pairs(s));
    c->lse = fixture_doubles(&c->fixture, s->heads * c->tokens);
    c->out = fixture_doubles(&c->fixture, c->tokens * c->width);
    reference_attention_weights(&c->reference, c->weights, c->lse);
    reference_attention_forward(&c->reference, c->out);
}

static struct attention_case attention_case(struct shape shape)
{
    struct attention_case c = {
        .fixture = fixture_open(2), .shape = shape, .tokens = shape.batch * shape.sequence};
    c.width = shape.heads * shape.head_dim;
    c.group_width = shape.groups * shape.head_dim;
    c.op = (struct attention_forward){
        .batch = shape.batch, .sequence = shape.sequence, .head_dim = shape.head_dim};
    c.op.scale = 1.0F / sqrtf((float)shape.head_dim);
    attention_variant_set(&shape.variant, &c.op);
    lay_out(&c);
    int64_t *sample = fixture_longs(&c.fixture, c.tokens);
    int32_t *document = fixture_ints(&c.fixture, c.tokens);
    for (int64_t t = 0; t < c.tokens; t++) {
        sample[t] = 1000 + t / shape.sequence;
        document[t] = shape.documents > 0 ? (int32_t)(t % shape.sequence / shape.documents) : 0;
    }
    c.op.document = shape.documents > 0 ? document : NULL;
    c.op.dropout = (struct dropout){.probability = shape.dropout,
                                    .generator = philox_named(7, "attention"),
                                    .sample = sample,
                                    .columns = shape.sequence,
                                    .column_begin = 3}; // this rank's heads begin at the fourth
    make_reference(&c);
    return c;
}

static void run_forward(struct attention_case *c)
{
    cr_assert_eq(attention_forward(c->fixture.stream, c->op), OK, "%s", fail_text());
}

static void run_backward(struct attention_case *c)
{
    c->backward.forward = c->op;
    cr_assert_eq(attention_backward(c->fixture.stream, c->backward), OK, "%s", fail_text());
}

static const double *row_of(const double *x, int64_t token, int64_t heads, int64_t head, int64_t d)
{
    return x + (token * heads + head) * d;
}

static double sizes_dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += fabs(a[i] * b[i]);
    return sum;
}

/* A score's error: its D products and their sum, the scaled query, and its difference to the maximum or lse
 * (one rounding of a number no larger than the sum of both): (D + 3) of sum |q k| scale, and |s| + |lse|. A
 * cap contracts errors and adds those of tanh (3 ulp) and two multiplications. */
static double score_error(const struct attention_case *c, int64_t b, int64_t h, int64_t s, int64_t r)
{
    const struct reference_attention *a = &c->reference;
    int64_t d = a->head_dim, t = b * a->sequence;
    const double *q = row_of(a->q, t + s, a->heads, h, d);
    const double *k = row_of(a->k, t + r, a->groups, h / (a->heads / a->groups), d);
    double size = sizes_dot(q, k, d) * a->scale;
    double cap = a->variant.softcap > 0.0F ? 8.0 * size : 0.0;
    return UNIT * (((double)d + 3.0) * size + size + cap + fabs(c->lse[h * c->tokens + t + s]));
}

/* The relative error of a weight p / l before its own arithmetic: its score's, and the mean of all scores'
 * through l; e^x is accurate to 2 ulp (4 units), for p, for l, and again for each block's rescaling (with a
 * multiplication); l adds S terms. */
static double row_error(const struct attention_case *c, int64_t b, int64_t h, int64_t s,
                        const double *weights)
{
    double mean = 0.0, blocks = ceil((double)c->shape.sequence / 64.0);
    for (int64_t r = 0; r <= s; r++)
        mean += weights[r] * score_error(c, b, h, s, r);
    return mean + UNIT * (8.0 + 10.0 * blocks + (double)c->shape.sequence + 4.0);
}

/* out: each weight's error times its value, the dropout factor (2), and a chain of S + blocks
 * multiply-adds. */
static int64_t forward_outside(struct attention_case *c, double *worst)
{
    const struct shape *s = &c->shape;
    int64_t d = s->head_dim;
    double *bound = fixture_doubles(&c->fixture, c->tokens * c->width);
    double *lse_bound = fixture_doubles(&c->fixture, s->heads * c->tokens), *weights = c->weights;
    memset(bound, 0, (size_t)(c->tokens * c->width) * sizeof *bound);
    for (int64_t row = 0; row < s->batch * s->heads * s->sequence; row++, weights += s->sequence) {
        int64_t b = row / s->sequence / s->heads, h = row / s->sequence % s->heads, i = row % s->sequence;
        int64_t token = b * s->sequence + i;
        double common = row_error(c, b, h, i, weights);
        lse_bound[h * c->tokens + token] = common + 3.0 * UNIT * (1.0 + fabs(c->lse[h * c->tokens + token]));
        for (int64_t r = 0; r <= i; r++) {
            double factor = c->reference.factor != NULL ? c->reference.factor[row * s->sequence + r] : 1.0;
            double error = common + score_error(c, b, h, i, r) + UNIT * (2.0 * (double)s->sequence + 4.0);
            const double *v =
                row_of(c->reference.v, b * s->sequence + r, s->groups, h / (s->heads / s->groups), d);
            for (int64_t j = 0; j < d; j++)
                bound[(token * s->heads + h) * d + j] += weights[r] * factor * fabs(v[j]) * error;
        }
    }
    int64_t outside = count_outside(c->op.lse.data, c->lse, lse_bound, s->heads * c->tokens, NULL);
    return outside + count_outside(c->op.out.data, c->out, bound, c->tokens * c->width, worst);
}

Test(ops_attention, forward)
{
    for (int i = 0; i < SHAPES; i++) {
        struct attention_case c = attention_case(shapes[i]);
        double worst;
        run_forward(&c);
        cr_expect_eq(forward_outside(&c, &worst), 0, "shape %d: %g", i, worst);
        cr_expect(fixture_is_guarded(c.op.out.data, c.tokens * c.width));
        cr_expect(fixture_is_guarded(c.op.lse.data, c.shape.heads * c.tokens));
        fixture_close(&c.fixture);
    }
}

struct gradients {
    double *dq, *dk, *dv, *dq_bound, *dk_bound, *dv_bound;
};

/* One pair's contribution to the bounds. ds = p (dp - delta) scale: p's relative error and three roundings;
 * dp: D products; delta: D products too, and out's own rounding. The derivative of a cap, 1 - t^2 with t =
 * tanh, changes by 2 (1 - t^2) of the change of t's operand, and has the roundings of t and itself. Then
 * chains: over S keys for dq; over the group's heads and S queries for dk and dv. */
static void add_pair(const struct attention_case *c, const struct gradients *g, int64_t b, int64_t h,
                     int64_t s, int64_t r)
{
    const struct reference_attention *a = &c->reference;
    int64_t d = a->head_dim, t = b * a->sequence, group = h / (a->heads / a->groups);
    int64_t pair = ((b * a->heads + h) * a->sequence + s) * a->sequence + r;
    double p = c->weights[pair], factor = a->factor != NULL ? a->factor[pair] : 1.0, dp = 0.0, delta = 0.0;
    int64_t q_at = ((t + s) * a->heads + h) * d, k_at = ((t + r) * a->groups + group) * d;
    const float *dout = c->dout + q_at;
    double dp_size = 0.0, delta_size = 0.0;
    for (int64_t i = 0; i < d; i++) {
        dp += (double)dout[i] * a->v[k_at + i] * factor;
        dp_size += fabs((double)dout[i] * a->v[k_at + i]) * factor;
        delta += (double)dout[i] * c->out[q_at + i];
        delta_size += fabs((double)dout[i] * c->out[q_at + i]);
    }
    double p_error = score_error(c, b, h, s, r) + UNIT * (5.0 + fabs(c->lse[h * c->tokens + t + s]));
    double ds = fabs(p * (dp - delta)) * a->scale, roundings = (double)d + 4.0;
    double ds_error = ds * (p_error + 4.0 * UNIT) + p * a->scale * UNIT * roundings * (dp_size + delta_size);
    if (a->variant.softcap > 0.0F) // ds is the one without the derivative, which is at most 1
        ds_error += ds * (2.0 * score_error(c, b, h, s, r) / (double)a->variant.softcap + 16.0 * UNIT);
    double chain = UNIT * (double)(a->sequence * (a->heads / a->groups) + 2);
    for (int64_t i = 0; i < d; i++) {
        g->dq_bound[q_at + i] += fabs(a->k[k_at + i]) * (ds_error + ds * chain);
        g->dk_bound[k_at + i] += fabs(a->q[q_at + i]) * (ds_error + ds * chain);
        g->dv_bound[k_at + i] += p * factor * fabs((double)dout[i]) * (p_error + chain + 3.0 * UNIT);
    }
}

/* The backward pass reads the reference's out and lse, rounded, which excludes forward's errors. */
static struct gradients run_backward_alone(struct attention_case *c)
{
    const struct shape *s = &c->shape;
    int64_t q = c->tokens * c->width, k = c->tokens * c->group_width;
    struct fixture *fixture = &c->fixture;
    struct gradients g = {fixture_doubles(fixture, q), fixture_doubles(fixture, k),
                          fixture_doubles(fixture, k), fixture_doubles(fixture, q),
                          fixture_doubles(fixture, k), fixture_doubles(fixture, k)};
    for (int64_t i = 0; i < q; i++)
        ((float *)c->op.out.data)[i] = (float)c->out[i];
    for (int64_t i = 0; i < s->heads * c->tokens; i++)
        ((float *)c->op.lse.data)[i] = (float)c->lse[i];
    run_backward(c);
    reference_attention_backward(&c->reference, fixture_widen(fixture, c->dout, q), g.dq, g.dk, g.dv);
    memset(g.dq_bound, 0, (size_t)q * sizeof(double));
    memset(g.dk_bound, 0, (size_t)k * sizeof(double));
    memset(g.dv_bound, 0, (size_t)k * sizeof(double));
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->sequence; i++)
                for (int64_t r = 0; r <= i; r++)
                    add_pair(c, &g, b, h, i, r);
    return g;
}

static int64_t outside(struct tensor got, const double *want, const double *bound, double *worst)
{
    int64_t count = 0;
    *worst = 0.0;
    for (int64_t t = 0; t < got.dim[0]; t++) {
        double row_worst, zero = 0.0;
        const float *row = (const float *)got.data + t * got.stride[0];
        for (int64_t i = 0; i < got.dim[1]; i++) {
            // A masked pair contributes nothing: its gradient must be exactly 0.
            const double *allowed = bound[t * got.dim[1] + i] > 0.0 ? &bound[t * got.dim[1] + i] : &zero;
            count += count_outside(row + i, &want[t * got.dim[1] + i], allowed, 1, &row_worst);
            *worst = fmax(*worst, row_worst);
        }
    }
    return count;
}

static int64_t backward_outside(const struct attention_case *c, const struct gradients *g, double *worst)
{
    double w[3];
    int64_t count = outside(c->backward.dq, g->dq, g->dq_bound, &w[0]) +
                    outside(c->backward.dk, g->dk, g->dk_bound, &w[1]) +
                    outside(c->backward.dv, g->dv, g->dv_bound, &w[2]);
    *worst = fmax(w[0], fmax(w[1], w[2]));
    return count;
}

Test(ops_attention, backward)
{
    for (int i = 0; i < SHAPES; i++) {
        struct attention_case c = attention_case(shapes[i]);
        struct gradients g = run_backward_alone(&c);
        double worst;
        cr_expect_eq(backward_outside(&c, &g, &worst), 0, "shape %d: %g", i, worst);
        cr_expect(fixture_is_guarded(c.backward.dq.data, c.tokens * (c.width + 2 * c.group_width)));
        fixture_close(&c.fixture);
    }
}

/* The bounds must detect these errors. */
Test(ops_attention, bounds_detect_injected_faults)
{
    const struct attention_variant variant = {
        .window = 25, .alibi_heads = 12, .alibi_begin = 4, .softcap = 4.0F};
    for (int fault = 0; fault < 9; fault++) {
        struct attention_case c = attention_case((struct shape){1, 70, 4, 2, 16, 30, 0.25F, variant});
        const struct reference_attention right = c.reference;
        if (fault == 0) // a small error: a scale of D instead of its root would be a large one
            c.op.scale *= 1.0001F;
        if (fault == 1) // another head's mask
            c.op.dropout.column_begin = 2;
        if (fault == 2) // documents ignored
            c.op.document = NULL;
        if (fault == 3) // one more key for one query
            ((int32_t *)c.op.document)[29] = 1;
        if (fault == 4) // the wrong group, for two of four heads
            c.op.k.data = (float *)c.op.k.data + 16;
        if (fault == 5 || fault == 6) // the window is off by one
            c.op.window += fault == 5 ? 1 : -1;
        if (fault == 7) // slopes by the local head
            c.op.alibi.begin = 0;
        if (fault == 8)
            c.op.softcap *= 1.001F;
        double worst;
        run_forward(&c);
        cr_expect_gt(forward_outside(&c, &worst), 0, "forward, fault %d was not detected", fault);
        if (fault == 3)
            ((int32_t *)c.op.document)[29] = 0;
        c.reference = right;
        struct gradients g = run_backward_alone(&c);
        if (fault != 3)
            cr_expect_gt(backward_outside(&c, &g, &worst), 0, "backward, fault %d was not detected", fault);
        fixture_close(&c.fixture);
    }
}

/* Soft-capping done wrong: masked scores that are capped too, and a backward pass without the derivative. */
Test(ops_attention, bounds_detect_faults_of_a_cap)
{
    const struct shape shape = {1, 70, 4, 2, 16, 30, 0.0F, {.softcap = 2.0F}};
    for (int fault = CAP_RIGHT; fault <= CAP_WITHOUT_DERIVATIVE; fault++) {
        struct attention_case c = attention_case(shape);
        double worst;
        c.reference.cap_fault = fault;
        reference_attention_weights(&c.reference, c.weights, c.lse);
        reference_attention_forward(&c.reference, c.out);
        run_forward(&c);
        cr_expect_eq(forward_outside(&c, &worst) > 0, fault == CAP_AFTER_MASK, "forward, fault %d", fault);
        struct gradients g = run_backward_alone(&c);
        cr_expect_eq(backward_outside(&c, &g, &worst) > 0, fault != CAP_RIGHT, "backward, fault %d", fault);
        fixture_close(&c.fixture);
    }
}

/* A finite difference, independent of the reference: the kernels' own forward, perturbed along a direction,
 * against the kernels' own backward. The direction is the gradient, so that the slope is |gradient| and not a
 * small remainder of large terms; a step of 0.05 over 10000 elements keeps the curve linear to 1e-3. */
Test(ops_attention, forward_and_backward_agree)
{
    struct attention_case c = attention_case((struct shape){1, 80, 2, 1, 32, 0, 0.2F, {.softcap = 2.0F}});
    run_forward(&c);
    run_backward(&c);
    int64_t columns = c.op.q.stride[0], count = c.tokens * columns;
    float *x = c.op.q.data, *gradient = c.backward.dq.data;
    float *direction = fixture_copy(&c.fixture, gradient, count);
    double size = 0.0, slope = 0.0, value[2];
    for (int64_t i = 0; i < count; i++)
        size += (double)gradient[i] * (double)gradient[i];
    for (int64_t i = 0; i < count; i++) {
        direction[i] *= (float)(0.05 / sqrt(size));
        slope += (double)direction[i] * (double)gradient[i];
    }
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < count; i++)
            x[i] += side == 0 ? direction[i] : -2.0F * direction[i];
        run_forward(&c);
        value[side] = 0.0;
        for (int64_t i = 0; i < c.tokens * c.width; i++)
            value[side] += (double)((float *)c.op.out.data)[i] * (double)c.dout[i];
    }
    cr_expect_lt(fabs((value[0] - value[1]) / 2.0 - slope), 1e-3 * fabs(slope), "%g for %g",
                 (value[0] - value[1]) / 2.0, slope);
    fixture_close(&c.fixture);
}

/* Dropout preserves the mean: over 9248 pairs the factors average 1, within five standard errors. */
Test(ops_attention, dropout_keeps_the_mean)
{
    struct attention_case c = attention_case((struct shape){1, 68, 2, 2, 16, 0, 0.25F, {0}});
    double sum = 0.0;
    int64_t count = pairs(&c.shape);
    for (int64_t i = 0; i < count; i++)
        sum += c.reference.factor[i];
    double deviation = sqrt(0.25 / 0.75); // of one factor: 0 or 4/3
    cr_expect_lt(fabs(sum / (double)count - 1.0), 5.0 * deviation / sqrt((double)count));
    fixture_close(&c.fixture);
}
