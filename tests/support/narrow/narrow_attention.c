// SPDX-License-Identifier: Apache-2.0
#include "tests/support/narrow/narrow_attention.h"

#include "tests/support/narrow/narrow_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY 0x1p-25

struct tensor attention_trial_matrix(struct attention_trial *c, const char *name, int64_t rows,
                                     int64_t columns)
{
    uint16_t *data = fixture_shorts(&c->fixture, rows * columns);
    const float *from = name != NULL ? fixture_normals(&c->fixture, name, rows * columns, 1.0) : NULL;
    for (int64_t i = 0; from != NULL && i < rows * columns; i++)
        data[i] = narrow_nearest(c->dtype, from[i]);
    return tensor_2d(data, c->dtype, rows, columns);
}

static double *widened(struct attention_trial *c, struct tensor t)
{
    double *out = fixture_doubles(&c->fixture, t.dim[0] * t.dim[1]);
    for (int64_t i = 0; i < t.dim[0] * t.dim[1]; i++)
        out[i] = narrow_value(t.dtype, ((const uint16_t *)t.data)[i / t.dim[1] * t.stride[0] + i % t.dim[1]]);
    return out;
}

/* q, k and v are columns of one matrix, as in the model; the gradients too. */
static void lay_out(struct attention_trial *c)
{
    int64_t a = c->width, g = a + c->group_width, columns = g + c->group_width;
    struct tensor qkv = attention_trial_matrix(c, "qkv", c->tokens, columns),
                  gradient = attention_trial_matrix(c, NULL, c->tokens, columns);
    struct attention_forward *f = &c->op.forward;
    *f = (struct attention_forward){
        .batch = c->shape.batch, .sequence = c->shape.sequence, .head_dim = c->shape.head_dim};
    f->scale = 1.0F / sqrtf((float)c->shape.head_dim);
    attention_variant_set(&c->shape.variant, f);
    f->q = tensor_columns(qkv, 0, a);
    f->k = tensor_columns(qkv, a, g);
    f->v = tensor_columns(qkv, g, columns);
    f->out = attention_trial_matrix(c, NULL, c->tokens, a);
    f->lse =
        tensor_2d(fixture_floats(&c->fixture, c->shape.heads * c->tokens), F32, c->shape.heads, c->tokens);
    c->op.dout = attention_trial_matrix(c, "dout", c->tokens, a);
    c->op.dq = tensor_columns(gradient, 0, a);
    c->op.dk = tensor_columns(gradient, a, g);
    c->op.dv = tensor_columns(gradient, g, columns);
    int64_t *sample = fixture_longs(&c->fixture, c->tokens);
    int32_t *document = fixture_ints(&c->fixture, c->tokens);
    for (int64_t t = 0; t < c->tokens; t++) {
        sample[t] = 1000 + t / c->shape.sequence;
        document[t] = c->shape.documents > 0 ? (int32_t)(t % c->shape.sequence / c->shape.documents) : 0;
    }
    f->document = c->shape.documents > 0 ? document : NULL;
    f->dropout = (struct dropout){.probability = c->shape.dropout,
                                  .generator = philox_named(7, "attention"),
                                  .sample = sample,
                                  .columns = c->shape.sequence,
                                  .column_begin = 3}; // this rank's heads begin at the fourth
}

static void make_reference(struct attention_trial *c)
{
    const struct attention_forward *f = &c->op.forward;
    const struct attention_shape *s = &c->shape;
    int64_t square = s->sequence * s->sequence, pairs = s->batch * s->heads * square;
    double *factor = NULL;
    if (s->dropout > 0.0F) {
        factor = fixture_doubles(&c->fixture, pairs);
        for (int64_t i = 0; i < pairs; i++)
            factor[i] = reference_attention_dropout(f, i / square / s->heads, i / square % s->heads,
                                                    i / s->sequence % s->sequence, i % s->sequence);
    }
    c->reference = (struct reference_attention){.batch = s->batch,
                                                .sequence = s->sequence,
                                                .heads = s->heads,
                                                .groups = s->groups,
                                                .head_dim = s->head_dim,
                                                .variant = s->variant,
                                                .scale = (double)f->scale,
                                                .document = f->document,
                                                .q = widened(c, f->q),
                                                .k = widened(c, f->k),
                                                .v = widened(c, f->v),
                                                .factor = factor};
    c->dout = widened(c, c->op.dout);
    c->weights = fixture_doubles(&c->fixture, pairs);
    c->lse = fixture_doubles(&c->fixture, s->heads * c->tokens);
    c->out = fixture_doubles(&c->fixture, c->tokens * c->width);
    c->dq = fixture_doubles(&c->fixture, c->tokens * c->width);
    c->dk = fixture_doubles(&c->fixture, c->tokens * c->group_width);
    c->dv = fixture_doubles(&c->fixture, c->tokens * c->group_width);
    reference_attention_weights(&c->reference, c->weights, c->lse);
    reference_attention_forward(&c->reference, c->out);
    reference_attention_backward(&c->reference, c->dout, c->dq, c->dk, c->dv);
}

struct attention_trial attention_trial_of(struct attention_shape shape, enum dtype dtype)
{
    struct attention_trial c = {
        .fixture = fixture_open(1), .shape = shape, .dtype = dtype, .tokens = shape.batch * shape.sequence};
    c.width = shape.heads * shape.head_dim;
    c.group_width = shape.groups * shape.head_dim;
    lay_out(&c);
    make_reference(&c);
    return c;
}

void attention_trial_forward(struct attention_trial *c)
{
    MUST(attention_forward(c->fixture.stream, c->op.forward));
    MUST(stream_sync(c->fixture.stream));
}

void attention_trial_backward(struct attention_trial *c)
{
    for (int64_t i = 0; i < c->tokens * c->width; i++)
        ((uint16_t *)c->op.forward.out.data)[i] = narrow_nearest(c->dtype, (float)c->out[i]);
    for (int64_t i = 0; i < c->shape.heads * c->tokens; i++)
        ((float *)c->op.forward.lse.data)[i] = (float)c->lse[i];
    MUST(attention_backward(c->fixture.stream, c->op));
    MUST(stream_sync(c->fixture.stream));
}

/* The error of a sum of `count` products, in units of 2^-24 of the sum of their absolute values. */
static double sum_units(int64_t count)
{
    return narrow_sum_error(count) / UNIT;
}

/* The relative fp32 error of a weight e^(s - lse): its score's D products, scaling and difference to lse, e^x
 * itself (5 units), and for forward the sums of S weights and of S products, and their rescaling at every
 * tile. */
static double rest(const struct attention_trial *c, int64_t b, int64_t h, int64_t s, int64_t r)
{
    const struct reference_attention *a = &c->reference;
    int64_t d = a->head_dim, t = b * a->sequence;
    const double *q = a->q + ((t + s) * a->heads + h) * d,
                 *k = a->k + ((t + r) * a->groups + h / (a->heads / a->groups)) * d;
    double size = 0.0, n = (double)a->sequence;
    for (int64_t i = 0; i < d; i++)
        size += fabs(q[i] * k[i]);
    return UNIT * ((sum_units(d) + 6.0) * size * a->scale + 4.0 * fabs(c->lse[h * c->tokens + t + s]) +
                   n / 4.0 + n + sum_units(a->sequence) + 16.0);
}

static int64_t outside(struct attention_trial *c, struct tensor got, const double *want, const double *bound,
                       const char *what)
{
    const double *values = widened(c, got);
    int64_t wrong = 0;
    double worst = 0.0;
    for (int64_t i = 0; i < got.dim[0] * got.dim[1]; i++) {
        double error = fabs(values[i] - want[i]);
        wrong += !(error <= bound[i]);
        worst = fmax(worst, bound[i] > 0.0 ? error / bound[i] : 0.0);
    }
    if (getenv("SHOW_WORST") != NULL)
        fprintf(stderr, "%s: largest error %.3f of its bound\n", what, worst);
    return wrong;
}

static double *zeros(struct attention_trial *c, int64_t count)
{
    double *x = fixture_doubles(&c->fixture, count);
    memset(x, 0, (size_t)count * sizeof *x);
    return x;
}

/* out: each weight rounded, times its value; then out itself. */
int64_t attention_forward_outside(struct attention_trial *c)
{
    const struct reference_attention *a = &c->reference;
    double u = narrow_unit(c->dtype), *bound = zeros(c, c->tokens * c->width);
    int64_t wrong = 0, d = a->head_dim;
    for (int64_t row = 0; row < a->batch * a->heads * a->sequence; row++) {
        int64_t s = row % a->sequence, h = row / a->sequence % a->heads, b = row / a->sequence / a->heads;
        int64_t token = b * a->sequence + s, at = (token * a->heads + h) * d, pair = row * a->sequence;
        double common = 0.0;
        for (int64_t r = 0; r <= s; r++)
            common += c->weights[pair + r] * rest(c, b, h, s, r);
        for (int64_t r = 0; r <= s; r++) {
            const double *v = a->v + ((b * a->sequence + r) * a->groups + h / (a->heads / a->groups)) * d;
            double factor = a->factor != NULL ? a->factor[pair + r] : 1.0, p = c->weights[pair + r];
            double error = p * (u + common + rest(c, b, h, s, r)) + (p > 0.0 ? TINY : 0.0);
            for (int64_t j = 0; j < d; j++)
                bound[at + j] += factor * error * fabs(v[j]);
        }
        for (int64_t j = 0; j < d; j++)
            bound[at + j] = (bound[at + j] + u * fabs(c->out[at + j])) * (1.0 + 4.0 * u) + TINY;
        double got = (double)((float *)c->op.forward.lse.data)[h * c->tokens + token];
        wrong += !(fabs(got - c->lse[h * c->tokens + token]) <= common);
    }
    return wrong + outside(c, c->op.forward.out, c->out, bound, "out");
}

struct bounds {
    double *dq, *dk, *dv;
};

/* One pair's contribution. dq, dk: each ds rounded, and delta computed from the rounded out; dv: each weight
 * rounded; all: a sum over at most S queries of all heads. */
static void add_pair(const struct attention_trial *c, const struct bounds *bound, int64_t b, int64_t h,
                     int64_t s, int64_t r)
{
    const struct reference_attention *a = &c->reference;
    int64_t d = a->head_dim, t = b * a->sequence, group = h / (a->heads / a->groups);
    int64_t pair = ((b * a->heads + h) * a->sequence + s) * a->sequence + r;
    int64_t q = ((t + s) * a->heads + h) * d, k = ((t + r) * a->groups + group) * d;
    double u = narrow_unit(c->dtype), p = c->weights[pair],
           factor = a->factor != NULL ? a->factor[pair] : 1.0;
    double dp = 0.0, dp_size = 0.0, delta = 0.0, delta_size = 0.0;
    if (p == 0.0)
        return;
    for (int64_t i = 0; i < d; i++) {
        dp += c->dout[q + i] * a->v[k + i] * factor;
        dp_size += fabs(c->dout[q + i] * a->v[k + i]) * factor;
        delta += c->dout[q + i] * c->out[q + i];
        delta_size += fabs(c->dout[q + i] * c->out[q + i]);
    }
    double fp32 = rest(c, b, h, s, r) + narrow_sum_error(a->heads * a->sequence);
    double head = c->rounds_heads ? u * (1.0 + 4.0 * u) : 0.0;
    double ds_error = p * fabs(dp - delta) * (u + fp32) + p * delta_size * u +
                      p * UNIT * (sum_units(d) + 4.0) * (dp_size + delta_size) + TINY;
    for (int64_t i = 0; i < d; i++) {
        bound->dq[q + i] += a->scale * fabs(a->k[k + i]) * ds_error;
        bound->dk[k + i] += a->scale * fabs(a->q[q + i]) * (ds_error + head * p * fabs(dp - delta));
        bound->dv[k + i] += factor * fabs(c->dout[q + i]) * (p * (u + fp32 + head) + TINY);
    }
}

static int64_t gradient_outside(struct attention_trial *c, struct tensor got, const double *want,
                                double *bound, const char *what)
{
    double u = narrow_unit(c->dtype);
    for (int64_t i = 0; i < got.dim[0] * got.dim[1]; i++)
        if (bound[i] > 0.0) // a masked pair contributes nothing
            bound[i] = (bound[i] + u * fabs(want[i])) * (1.0 + 4.0 * u) + TINY;
    return outside(c, got, want, bound, what);
}

int64_t attention_backward_outside(struct attention_trial *c)
{
    const struct reference_attention *a = &c->reference;
    struct bounds bound = {zeros(c, c->tokens * c->width), zeros(c, c->tokens * c->group_width),
                           zeros(c, c->tokens * c->group_width)};
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t s = 0; s < a->sequence; s++)
                for (int64_t r = 0; r <= s; r++)
                    add_pair(c, &bound, b, h, s, r);
    return gradient_outside(c, c->op.dq, c->dq, bound.dq, "dq") +
           gradient_outside(c, c->op.dk, c->dk, bound.dk, "dk") +
           gradient_outside(c, c->op.dv, c->dv, bound.dv, "dv");
}
