// SPDX-License-Identifier: Apache-2.0
/* A second, independent implementation of the ops: double precision, one loop per index, dense arrays, no
 * optimization, no code shared with kernels/. The backward functions are themselves checked against finite
 * differences of the forward ones (tests/unit/kernels/test_ops_reference.c).
 *
 * Gradients are overwritten here, also where an op accumulates. Letters as in kernels/ops.h. */
#pragma once

#include "kernels/ops.h"

/* The factor of element (token, column) of a dropout mask, as ops.h defines it. */
double reference_dropout(const struct dropout *dropout, int64_t token, int64_t column);
/* The same for a pair of attention. */
double reference_attention_dropout(const struct attention_forward *op, int64_t batch, int64_t head, int64_t s,
                                   int64_t r);

struct reference_norm {
    enum norm_kind kind;
    int64_t rows, columns;
    double epsilon;
    const double *x, *weight, *bias; // bias: NORM_LAYER
};
void reference_norm_statistics(const struct reference_norm *op, double *mean, double *rstd);
void reference_norm_forward(const struct reference_norm *op, double *y);
void reference_norm_backward(const struct reference_norm *op, const double *mean, const double *rstd,
                             const double *dy, double *dx, double *dweight, double *dbias);

/* x[rows, columns], with a gate [rows, 2 columns]. */
void reference_activation_forward(enum activation kind, int64_t rows, int64_t columns, const double *x,
                                  double *y);
void reference_activation_backward(enum activation kind, int64_t rows, int64_t columns, const double *x,
                                   const double *dy, double *dx);

void reference_rope(int64_t rows, int64_t heads, int64_t head_dim, const int32_t *position, double base,
                    bool inverse, double *x);
/* The same with all options of the op; only its tensor is not read. */
void reference_rope_of(const struct rope *op, int64_t rows, int64_t heads, double *x);

/* Options of attention, as in ops.h; {0}: none. */
struct attention_variant {
    int64_t window;
    int64_t alibi_heads, alibi_begin;
    float softcap;
};
void attention_variant_set(const struct attention_variant *variant, struct attention_forward *op);

/* Attention with S x S matrices. factor[b][h][s][r]: dropout factors, or NULL. */
struct reference_attention {
    int64_t batch, sequence, heads, groups, head_dim;
    double scale;
    struct attention_variant variant;
    const int32_t *document;
    const double *q, *k, *v, *factor;
    enum { CAP_RIGHT, CAP_AFTER_MASK, CAP_WITHOUT_DERIVATIVE } cap_fault; // to inject
};
/* x becomes cap tanh(x / cap); cap 0: x. */
double reference_softcap(double x, double cap);
/* Its derivative. */
double reference_softcap_slope(double x, double cap);
/* The softmax, [b][h][s][r], 0 for masked pairs; lse[h][b * S + s], or NULL. */
void reference_attention_weights(const struct reference_attention *op, double *weights, double *lse);
void reference_attention_forward(const struct reference_attention *op, double *out);
void reference_attention_backward(const struct reference_attention *op, const double *dout, double *dq,
                                  double *dk, double *dv);

/* loss = sum over rows of mask * -log softmax(logits)[label]. */
double reference_loss_forward(int64_t rows, int64_t columns, const double *logits, const int32_t *label,
                              const float *mask);
void reference_loss_backward(int64_t rows, int64_t columns, const double *logits, const int32_t *label,
                             const float *mask, double *dlogits);

struct reference_adamw {
    double lr, beta1, beta2, epsilon, correction1, correction2, gradient_scale, weight_decay;
};
void reference_adamw(const struct reference_adamw *hyper, double gradient, double *weight, double *m,
                     double *v);
