// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reference_ops.h"

#include <math.h>
#include <stdlib.h>

double reference_dropout(const struct dropout *dropout, int64_t token, int64_t column)
{
    uint64_t element =
        (uint64_t)(dropout->sample_offset[token] * dropout->columns + dropout->column_begin + column);
    uint32_t word = philox_word(dropout->generator, (uint64_t)dropout->sample[token], element);
    bool kept = philox_uniform(word) >= dropout->probability;
    return kept ? 1.0 / (1.0 - (double)dropout->probability) : 0.0;
}

double reference_attention_dropout(const struct attention_forward *op, int64_t batch, int64_t head, int64_t s,
                                   int64_t r)
{
    const struct dropout *dropout = &op->dropout;
    int64_t element = ((dropout->column_begin + head) * op->sequence + s) * op->sequence + r;
    uint64_t sample = (uint64_t)dropout->sample[batch * op->sequence];
    bool kept =
        philox_uniform(philox_word(dropout->generator, sample, (uint64_t)element)) >= dropout->probability;
    return kept ? 1.0 / (1.0 - (double)dropout->probability) : 0.0;
}

void reference_norm_statistics(const struct reference_norm *op, double *mean, double *rstd)
{
    for (int64_t t = 0; t < op->rows; t++) {
        const double *x = op->x + t * op->columns;
        double sum = 0.0, squares = 0.0;
        for (int64_t i = 0; i < op->columns; i++)
            sum += x[i];
        mean[t] = op->kind == NORM_LAYER ? sum / (double)op->columns : 0.0;
        for (int64_t i = 0; i < op->columns; i++)
            squares += (x[i] - mean[t]) * (x[i] - mean[t]);
        rstd[t] = 1.0 / sqrt(squares / (double)op->columns + op->epsilon);
    }
}

void reference_norm_forward(const struct reference_norm *op, double *y)
{
    double *mean = calloc((size_t)op->rows, sizeof *mean), *rstd = calloc((size_t)op->rows, sizeof *rstd);
    reference_norm_statistics(op, mean, rstd);
    for (int64_t t = 0; t < op->rows; t++) {
        for (int64_t i = 0; i < op->columns; i++) {
            int64_t at = t * op->columns + i;
            y[at] = (op->x[at] - mean[t]) * rstd[t] * op->weight[i];
            if (op->kind == NORM_LAYER)
                y[at] += op->bias[i];
        }
    }
    free(mean);
    free(rstd);
}

/* d y[j] / d x[i], contracted with dy: over every pair of columns, without algebraic simplification.
 * xhat[j] = (x[j] - mean) rstd;  d mean/d x[i] = 1/n;  d rstd/d x[i] = -rstd^2 xhat[i] / n. */
void reference_norm_backward(const struct reference_norm *op, const double *mean, const double *rstd,
                             const double *dy, double *dx, double *dweight, double *dbias)
{
    const double n = (double)op->columns;
    for (int64_t i = 0; i < op->columns; i++)
        dweight[i] = dbias[i] = 0.0;
    for (int64_t t = 0; t < op->rows; t++) {
        const double *x = op->x + t * op->columns, *g = dy + t * op->columns;
        for (int64_t i = 0; i < op->columns; i++) {
            double xhat_i = (x[i] - mean[t]) * rstd[t], sum = 0.0;
            for (int64_t j = 0; j < op->columns; j++) {
                double xhat_j = (x[j] - mean[t]) * rstd[t];
                double d = i == j ? rstd[t] : 0.0;
                if (op->kind == NORM_LAYER)
                    d -= rstd[t] / n;
                d -= xhat_j * rstd[t] * xhat_i / n;
                sum += g[j] * op->weight[j] * d;
            }
            dx[t * op->columns + i] = sum;
            dweight[i] += g[i] * xhat_i;
            dbias[i] += g[i];
        }
    }
}

static double activate(enum activation kind, double x)
{
    switch (kind) {
    case ACTIVATION_GELU:
    case ACTIVATION_GEGLU:
        return 0.5 * x * erfc(-x / sqrt(2.0));
    case ACTIVATION_SQUARED_RELU:
        return x > 0.0 ? x * x : 0.0;
    case ACTIVATION_GELU_TANH:
    case ACTIVATION_GEGLU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_SWIGLU:
        break;
    }
    return x / (1.0 + exp(-x));
}

static double activate_slope(enum activation kind, double x)
{
    switch (kind) {
    case ACTIVATION_GELU:
    case ACTIVATION_GEGLU:
        return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    case ACTIVATION_SQUARED_RELU:
        return x > 0.0 ? 2.0 * x : 0.0;
    case ACTIVATION_GELU_TANH:
    case ACTIVATION_GEGLU_TANH: {
        double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), tanh_u = tanh(u);
        double du = sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
        return 0.5 * (1.0 + tanh_u) + 0.5 * x * du / (cosh(u) * cosh(u));
    }
    case ACTIVATION_SWIGLU:
        break;
    }
    double s = 1.0 / (1.0 + exp(-x));
    return s + x * s * (1.0 - s);
}

void reference_activation_forward(enum activation kind, int64_t rows, int64_t columns, const double *x,
                                  double *y)
{
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t i = 0; i < columns; i++) {
            if (activation_is_gated(kind))
                y[t * columns + i] =
                    activate(kind, x[t * 2 * columns + i]) * x[t * 2 * columns + columns + i];
            else
                y[t * columns + i] = activate(kind, x[t * columns + i]);
        }
    }
}

void reference_activation_backward(enum activation kind, int64_t rows, int64_t columns, const double *x,
                                   const double *dy, double *dx)
{
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t i = 0; i < columns; i++) {
            double g = dy[t * columns + i];
            if (activation_is_gated(kind)) {
                int64_t gate = t * 2 * columns + i, up = gate + columns;
                dx[gate] = g * x[up] * activate_slope(kind, x[gate]);
                dx[up] = g * activate(kind, x[gate]);
            } else {
                dx[t * columns + i] = g * activate_slope(kind, x[t * columns + i]);
            }
        }
    }
}

/* The frequency of a pair, written from the papers: Llama 3's and YaRN's mixtures by wavelength and by number
 * of rotations. */
static double frequency_of(const struct rope *op, double i)
{
    const struct rope_scaling *s = &op->scaling;
    double r = (double)(op->rotated > 0 ? op->rotated : op->head_dim), f = pow(op->base, -2.0 * i / r);
    double turns = s->original * f / (2.0 * M_PI), low, high;
    switch (s->kind) {
    case ROPE_UNSCALED:
        break;
    case ROPE_LINEAR:
        return f / s->factor;
    case ROPE_NTK:
        return pow(op->base * pow(s->factor, r / (r - 2.0)), -2.0 * i / r);
    case ROPE_LLAMA3:
        if (turns < s->low)
            return f / s->factor;
        if (turns <= s->high)
            return f * ((turns - s->low) + (s->high - turns) / s->factor) / (s->high - s->low);
        break;
    case ROPE_YARN:
        // The pairs with `high` and `low` rotations, as real numbers:
        // base^(-2 pair / r) original = 2 pi turns.
        low = fmax(floor(r / 2.0 * log(s->original / (2.0 * M_PI * s->high)) / log(op->base)), 0.0);
        high = fmin(ceil(r / 2.0 * log(s->original / (2.0 * M_PI * s->low)) / log(op->base)), r - 1.0);
        if (i <= low)
            return f;
        return i >= high ? f / s->factor : f * (high - i + (i - low) / s->factor) / (high - low);
    }
    return f;
}

void reference_rope_of(const struct rope *op, int64_t rows, int64_t heads, double *x)
{
    int64_t rotated = op->rotated > 0 ? op->rotated : op->head_dim;
    double size = op->scaling.kind == ROPE_YARN ? 1.0 + 0.1 * log(op->scaling.factor) : 1.0;
    for (int64_t h = 0; h < rows * heads; h++) {
        double *head = x + h * op->head_dim;
        for (int64_t i = 0; i < rotated / 2; i++) {
            double angle = (double)op->position[h / heads] * frequency_of(op, (double)i);
            double c = size * cos(angle), s = size * (op->inverse ? -sin(angle) : sin(angle));
            double *a = head + (op->interleaved ? 2 * i : i), *b = a + (op->interleaved ? 1 : rotated / 2);
            double first = *a, second = *b;
            *a = first * c - second * s;
            *b = first * s + second * c;
        }
    }
}

void reference_rope(int64_t rows, int64_t heads, int64_t head_dim, const int32_t *position, double base,
                    bool inverse, double *x)
{
    struct rope op = {.position = position, .head_dim = head_dim, .base = base, .inverse = inverse};
    reference_rope_of(&op, rows, heads, x);
}

static const double *head_row(const struct reference_attention *op, const double *x, int64_t heads, int64_t b,
                              int64_t s, int64_t head)
{
    return x + ((b * op->sequence + s) * heads + head) * op->head_dim;
}

static int64_t group_of(const struct reference_attention *op, int64_t head)
{
    return head / (op->heads / op->groups);
}

void attention_variant_set(const struct attention_variant *variant, struct attention_forward *op)
{
    op->window = variant->window;
    op->alibi.heads = variant->alibi_heads;
    op->alibi.begin = variant->alibi_begin;
    op->softcap = variant->softcap;
}

double reference_softcap(double x, double cap)
{
    return cap > 0.0 ? cap * tanh(x / cap) : x;
}

double reference_softcap_slope(double x, double cap)
{
    return cap > 0.0 ? pow(cosh(x / cap), -2.0) : 1.0;
}

static bool sees(const struct reference_attention *op, int64_t b, int64_t s, int64_t r)
{
    const int32_t *document = op->document != NULL ? op->document + b * op->sequence : NULL;
    int64_t window = op->variant.window;
    bool reaches = r <= s && (window == 0 || r + window > s);
    return reaches && (document == NULL || document[s] == document[r]);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The callers loop over the four indices of a pair; `pair` is the offset in [b][h][s][r]. */
static int64_t pair_index(const struct reference_attention *op, int64_t b, int64_t h, int64_t s, int64_t r)
{
    return ((b * op->heads + h) * op->sequence + s) * op->sequence + r;
}

/* As in the code of the paper: for a power of two of heads, a geometric sequence that starts at its own
 * ratio; else that of the nearest lower one, and then every other slope of twice as many heads. */
static double alibi_slope_of(int64_t heads, int64_t head)
{
    const int64_t nearest = (int64_t)pow(2.0, floor(log2((double)heads) + 1e-9));
    if (head >= nearest)
        return alibi_slope_of(2 * nearest, 2 * (head - nearest));
    const double start = pow(2.0, -pow(2.0, -(log2((double)nearest) - 3.0)));
    return start * pow(start, (double)head);
}

static double bias_of(const struct reference_attention *op, int64_t h, int64_t s, int64_t r)
{
    const struct attention_variant *variant = &op->variant;
    return variant->alibi_heads == 0
               ? 0.0
               : alibi_slope_of(variant->alibi_heads, variant->alibi_begin + h) * (double)(r - s);
}

/* The score of a pair, before the cap. */
static double raw_score(const struct reference_attention *op, int64_t b, int64_t h, int64_t s, int64_t r)
{
    return op->scale * dot(head_row(op, op->q, op->heads, b, s, h),
                           head_row(op, op->k, op->groups, b, r, group_of(op, h)), op->head_dim);
}

static void weights_row(const struct reference_attention *op, int64_t b, int64_t h, int64_t s,
                        double *weights, double *lse)
{
    double most = -INFINITY, sum = 0.0, *row = weights + pair_index(op, b, h, s, 0);
    const double cap = (double)op->variant.softcap;
    const bool masks_first = op->cap_fault == CAP_AFTER_MASK; // and a cap of -infinity is finite
    for (int64_t r = 0; r < op->sequence; r++) {
        const bool seen = sees(op, b, s, r);
        if (!seen && !masks_first)
            continue;
        row[r] = reference_softcap(seen ? raw_score(op, b, h, s, r) : -INFINITY, cap) + bias_of(op, h, s, r);
        most = fmax(most, row[r]);
    }
    for (int64_t r = 0; r < op->sequence; r++) {
        row[r] = masks_first || sees(op, b, s, r) ? exp(row[r] - most) : 0.0;
        sum += row[r];
    }
    for (int64_t r = 0; r < op->sequence; r++)
        row[r] /= sum;
    if (lse != NULL)
        lse[(h * op->batch + b) * op->sequence + s] = most + log(sum);
}

void reference_attention_weights(const struct reference_attention *op, double *weights, double *lse)
{
    for (int64_t b = 0; b < op->batch; b++)
        for (int64_t h = 0; h < op->heads; h++)
            for (int64_t s = 0; s < op->sequence; s++)
                weights_row(op, b, h, s, weights, lse);
}

static double *weights_of(const struct reference_attention *op)
{
    double *weights = calloc((size_t)pair_index(op, op->batch, 0, 0, 0), sizeof *weights);
    reference_attention_weights(op, weights, NULL);
    return weights;
}

void reference_attention_forward(const struct reference_attention *op, double *out)
{
    double *weights = weights_of(op);
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t h = 0; h < op->heads; h++) {
            for (int64_t s = 0; s < op->sequence; s++) {
                double *to = out + ((b * op->sequence + s) * op->heads + h) * op->head_dim;
                for (int64_t i = 0; i < op->head_dim; i++)
                    to[i] = 0.0;
                for (int64_t r = 0; r < op->sequence; r++) {
                    int64_t pair = pair_index(op, b, h, s, r);
                    double w = weights[pair] * (op->factor != NULL ? op->factor[pair] : 1.0);
                    if (w == 0.0)
                        continue; // most are masked
                    const double *v = head_row(op, op->v, op->groups, b, r, group_of(op, h));
                    for (int64_t i = 0; i < op->head_dim; i++)
                        to[i] += w * v[i];
                }
            }
        }
    }
    free(weights);
}

/* One query's contribution to all gradients. */
static void backward_row(const struct reference_attention *op, const double *weights, const double *dout,
                         int64_t b, int64_t h, int64_t s, double *dq, double *dk, double *dv)
{
    const double *q = head_row(op, op->q, op->heads, b, s, h), *g = head_row(op, dout, op->heads, b, s, h);
    double *dweight = calloc((size_t)op->sequence, sizeof *dweight), mean = 0.0;
    for (int64_t r = 0; r < op->sequence; r++) {
        int64_t pair = pair_index(op, b, h, s, r);
        double factor = op->factor != NULL ? op->factor[pair] : 1.0;
        if (weights[pair] == 0.0)
            continue; // masked
        const double *v = head_row(op, op->v, op->groups, b, r, group_of(op, h));
        dweight[r] = factor * dot(g, v, op->head_dim);
        mean += weights[pair] * dweight[r];
        double *dv_row = dv + (v - op->v);
        for (int64_t i = 0; i < op->head_dim; i++)
            dv_row[i] += weights[pair] * factor * g[i];
    }
    for (int64_t r = 0; r < op->sequence; r++) {
        if (weights[pair_index(op, b, h, s, r)] == 0.0)
            continue;
        const double cap = op->cap_fault == CAP_WITHOUT_DERIVATIVE ? 0.0 : (double)op->variant.softcap;
        double dscore = weights[pair_index(op, b, h, s, r)] * (dweight[r] - mean) * op->scale *
                        reference_softcap_slope(raw_score(op, b, h, s, r), cap);
        const double *k = head_row(op, op->k, op->groups, b, r, group_of(op, h));
        for (int64_t i = 0; i < op->head_dim; i++) {
            dq[(q - op->q) + i] += dscore * k[i];
            dk[(k - op->k) + i] += dscore * q[i];
        }
    }
    free(dweight);
}

void reference_attention_backward(const struct reference_attention *op, const double *dout, double *dq,
                                  double *dk, double *dv)
{
    double *weights = weights_of(op);
    int64_t tokens = op->batch * op->sequence;
    for (int64_t i = 0; i < tokens * op->heads * op->head_dim; i++)
        dq[i] = 0.0;
    for (int64_t i = 0; i < tokens * op->groups * op->head_dim; i++)
        dk[i] = dv[i] = 0.0;
    for (int64_t b = 0; b < op->batch; b++)
        for (int64_t h = 0; h < op->heads; h++)
            for (int64_t s = 0; s < op->sequence; s++)
                backward_row(op, weights, dout, b, h, s, dq, dk, dv);
    free(weights);
}

static double log_sum(const double *x, int64_t n)
{
    double most = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

double reference_loss_forward(int64_t rows, int64_t columns, const double *logits, const int32_t *label,
                              const float *mask)
{
    double loss = 0.0;
    for (int64_t t = 0; t < rows; t++)
        loss += (double)mask[t] * (log_sum(logits + t * columns, columns) - logits[t * columns + label[t]]);
    return loss;
}

void reference_loss_backward(int64_t rows, int64_t columns, const double *logits, const int32_t *label,
                             const float *mask, double *dlogits)
{
    for (int64_t t = 0; t < rows; t++) {
        double all = log_sum(logits + t * columns, columns);
        for (int64_t i = 0; i < columns; i++)
            dlogits[t * columns + i] =
                (double)mask[t] * (exp(logits[t * columns + i] - all) - (i == label[t] ? 1.0 : 0.0));
    }
}

void reference_adamw(const struct reference_adamw *hyper, double gradient, double *weight, double *m,
                     double *v)
{
    double g = gradient * hyper->gradient_scale;
    *m = hyper->beta1 * *m + (1.0 - hyper->beta1) * g;
    *v = hyper->beta2 * *v + (1.0 - hyper->beta2) * g * g;
    double step = (*m / hyper->correction1) / (sqrt(*v / hyper->correction2) + hyper->epsilon);
    *weight -= hyper->lr * (step + hyper->weight_decay * *weight);
}
