// SPDX-License-Identifier: Apache-2.0
/* A second, independent implementation of the layers: full tensors in double precision on one rank, forward
 * only. Gradients are finite differences of these (reference_gradient), so nothing here depends on how a
 * backward pass works. Built on the reference ops (reference_ops.h), which share no code with kernels/. */
#pragma once

#include "layers/pass.h"

struct reference_model {
    const struct model_config *model;
    const struct params *params; // of one rank
    double **weight;             // [rows] full tensors; a tied row uses its original's
    const struct batch *batch;   // arrays in host memory
    int64_t batch_size, sequence;
    uint64_t seed; // of dropout
};

/* "layers.0.norm1", "norm": y[T, H] from x[T, H]. */
void reference_layer_norm(const struct reference_model *r, const char *name, const double *x, double *y);
/* y[T, N] = x[T, K] w^T + bias; `name` is the row's without ".weight"; a model without biases has none. */
void reference_linear(const struct reference_model *r, const char *name, bool bias, const double *x,
                      double *y);
/* The branches without the last bias. */
void reference_attention_layer(const struct reference_model *r, int layer, const double *x, double *y);
void reference_mlp(const struct reference_model *r, int layer, const double *x, double *y);
void reference_block(const struct reference_model *r, int layer, const double *x, double *y);
void reference_embedding(const struct reference_model *r, double *y);
/* The loss, summed over tokens. */
double reference_head(const struct reference_model *r, const double *x);
double reference_whole(const struct reference_model *r);

/* d f / d x[i] for i < count, by central differences of fourth order: f is called with perturbed x, which
 * is then restored. In double precision with h = 1e-3 they are accurate to about 1e-11 of the values
 * involved. */
void reference_gradient(double (*f)(void *context), void *context, double *x, int64_t count,
                        double *gradient);
