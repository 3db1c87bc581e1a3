// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reference_layers.h"

#include "tests/support/reference_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *doubles(int64_t count)
{
    double *out = calloc((size_t)count + 1, sizeof *out);
    CHECK(out != NULL);
    return out;
}

static int64_t tokens_of(const struct reference_model *r)
{
    return r->batch_size * r->sequence;
}

static int row_of(const struct reference_model *r, const char *name, const char *suffix)
{
    char full[2 * PARAM_NAME_CHARS];
    snprintf(full, sizeof full, "%.64s%.16s", name, suffix);
    return params_find(r->params, full);
}

static void norm_rows(const struct reference_model *r, const char *name, int64_t rows, int64_t columns,
                      const double *x, double *y)
{
    int bias = row_of(r, name, ".bias");
    struct reference_norm op = {
        .kind = r->model->normalization == LAYER_NORM ? NORM_LAYER : NORM_RMS,
        .rows = rows,
        .columns = columns,
        .epsilon = r->model->norm_epsilon,
        .x = x,
        .weight = r->weight[row_of(r, name, ".weight")],
        .bias = bias >= 0 ? r->weight[bias] : NULL,
    };
    reference_norm_forward(&op, y);
}

void reference_layer_norm(const struct reference_model *r, const char *name, const double *x, double *y)
{
    norm_rows(r, name, tokens_of(r), r->model->hidden_size, x, y);
}

/* In place, on x[heads, D]. */
static void norm_heads(const struct reference_model *r, int layer, const char *name, int64_t heads, double *x)
{
    char full[2 * PARAM_NAME_CHARS];
    int64_t d = r->model->kv_channels;
    double *y = doubles(heads * d);
    snprintf(full, sizeof full, "layers.%d.%s", layer, name);
    norm_rows(r, full, heads, d, x, y);
    memcpy(x, y, (size_t)(heads * d) * sizeof *x);
    free(y);
}

/* RoPE in place, on x[tokens, heads D]. */
static void rotate(const struct reference_model *r, int64_t heads, double *x)
{
    const struct model_config *m = r->model;
    struct rope op = {.position = r->batch->position,
                      .head_dim = m->kv_channels,
                      .base = m->rotary_base,
                      .interleaved = m->rotary_interleaved,
                      .rotated = (int64_t)(m->rotary_percent * (double)m->kv_channels),
                      .scaling = model_rope_scaling(m)};
    reference_rope_of(&op, tokens_of(r), heads, x);
}

void reference_linear(const struct reference_model *r, const char *name, bool bias, const double *x,
                      double *y)
{
    int matrix = row_of(r, name, ".weight"), vector = bias ? row_of(r, name, ".bias") : -1;
    int64_t out = r->params->list[matrix].dim[0], in = r->params->list[matrix].dim[1];
    const double *w = r->weight[matrix];
    for (int64_t t = 0; t < tokens_of(r); t++)
        for (int64_t n = 0; n < out; n++) {
            double sum = vector >= 0 ? r->weight[vector][n] : 0.0;
            for (int64_t k = 0; k < in; k++)
                sum += x[t * in + k] * w[n * in + k];
            y[t * out + n] = sum;
        }
}

static void linear_of_layer(const struct reference_model *r, int layer, const char *name, bool bias,
                            const double *x, double *y)
{
    char full[2 * PARAM_NAME_CHARS];
    snprintf(full, sizeof full, "layers.%d.%s", layer, name);
    reference_linear(r, full, bias, x, y);
}

/* Dropout factors of all pairs, or NULL without dropout. */
static double *core_factors(const struct reference_model *r, int layer)
{
    const struct model_config *m = r->model;
    if (!(m->attention_dropout > 0.0))
        return NULL;
    char site[PARAM_NAME_CHARS];
    snprintf(site, sizeof site, "layers.%d.attention.core.dropout", layer);
    struct attention_forward op = {
        .sequence = r->sequence,
        .dropout = {.probability = (float)m->attention_dropout,
                    .generator = philox_named(r->seed, site),
                    .sample = r->batch->sample,
                    .columns = r->sequence},
    };
    int64_t s = r->sequence, a = m->num_attention_heads;
    double *factor = doubles(r->batch_size * a * s * s);
    for (int64_t i = 0; i < r->batch_size * a * s * s; i++)
        factor[i] = reference_attention_dropout(&op, i / (a * s * s), i / (s * s) % a, i / s % s, i % s);
    return factor;
}

void reference_attention_layer(const struct reference_model *r, int layer, const double *x, double *y)
{
    const struct model_config *m = r->model;
    int64_t tokens = tokens_of(r), d = m->kv_channels, a = m->num_attention_heads, g = m->num_query_groups;
    double *q = doubles(tokens * a * d), *k = doubles(tokens * g * d), *v = doubles(tokens * g * d),
           *out = doubles(tokens * a * d);
    linear_of_layer(r, layer, "attention.q", true, x, q);
    linear_of_layer(r, layer, "attention.k", true, x, k);
    linear_of_layer(r, layer, "attention.v", true, x, v);
    if (m->qk_layernorm) {
        norm_heads(r, layer, "attention.q_norm", tokens * a, q);
        norm_heads(r, layer, "attention.k_norm", tokens * g, k);
    }
    if (m->position_embedding == ROPE) {
        rotate(r, a, q);
        rotate(r, g, k);
    }
    double *factor = core_factors(r, layer);
    struct reference_attention op = {.batch = r->batch_size,
                                     .sequence = r->sequence,
                                     .heads = a,
                                     .groups = g,
                                     .head_dim = d,
                                     .variant = {.window = model_window(m, layer),
                                                 .alibi_heads = m->position_embedding == ALIBI ? a : 0,
                                                 .softcap = (float)m->attn_logit_softcapping},
                                     .scale = 1.0 / sqrt((double)d),
                                     .document = r->batch->document,
                                     .q = q,
                                     .k = k,
                                     .v = v,
                                     .factor = factor};
    reference_attention_forward(&op, out);
    linear_of_layer(r, layer, "attention.proj", false, out, y);
    free(q);
    free(k);
    free(v);
    free(out);
    free(factor);
}

void reference_mlp(const struct reference_model *r, int layer, const double *x, double *y)
{
    const struct model_config *m = r->model;
    const bool gated = activation_is_gated(m->activation);
    int64_t tokens = tokens_of(r), f = m->ffn_hidden_size, width = gated ? 2 * f : f;
    double *one = doubles(tokens * f), *before = doubles(tokens * width), *after = doubles(tokens * f);
    const char *names[] = {gated ? "mlp.gate" : "mlp.fc1", "mlp.up"};
    for (int64_t half = 0; half * f < width; half++) {
        linear_of_layer(r, layer, names[half], true, x, one);
        for (int64_t t = 0; t < tokens; t++)
            memcpy(before + t * width + half * f, one + t * f, (size_t)f * sizeof *one);
    }
    reference_activation_forward(m->activation, tokens, f, before, after);
    linear_of_layer(r, layer, "mlp.fc2", false, after, y);
    free(one);
    free(before);
    free(after);
}

/* y *= the hidden dropout factors of a site. */
static void drop(const struct reference_model *r, const char *site, double *y)
{
    int64_t h = r->model->hidden_size;
    struct dropout dropout = {.probability = (float)r->model->hidden_dropout,
                              .generator = philox_named(r->seed, site),
                              .sample = r->batch->sample,
                              .sample_offset = r->batch->sample_offset,
                              .columns = h};
    for (int64_t i = 0; r->model->hidden_dropout > 0.0 && i < tokens_of(r) * h; i++)
        y[i] *= reference_dropout(&dropout, i / h, i % h);
}

/* branch = residual + dropout(branch + bias) */
static void join(const struct reference_model *r, int layer, const char *branch_name, const char *last,
                 const double *residual, double *branch)
{
    char site[PARAM_NAME_CHARS], name[2 * PARAM_NAME_CHARS];
    snprintf(site, sizeof site, "layers.%d.%s.dropout", layer, branch_name);
    snprintf(name, sizeof name, "layers.%d.%s", layer, last);
    int64_t h = r->model->hidden_size;
    int bias = row_of(r, name, ".bias");
    for (int64_t i = 0; bias >= 0 && i < tokens_of(r) * h; i++)
        branch[i] += r->weight[bias][i % h];
    drop(r, site, branch);
    for (int64_t i = 0; i < tokens_of(r) * h; i++)
        branch[i] += residual[i];
}

void reference_block(const struct reference_model *r, int layer, const double *x, double *y)
{
    int64_t count = tokens_of(r) * r->model->hidden_size;
    double *normed = doubles(count), *middle = doubles(count);
    const enum block_type type = r->model->block_type;
    char name[PARAM_NAME_CHARS];
    snprintf(name, sizeof name, "layers.%d.norm1", layer);
    reference_layer_norm(r, name, x, normed);
    reference_attention_layer(r, layer, normed, middle);
    join(r, layer, "attention", "attention.proj", x, middle);
    snprintf(name, sizeof name, "layers.%d.norm2", layer);
    if (type != BLOCK_PARALLEL)
        reference_layer_norm(r, name, type == BLOCK_SEQUENTIAL ? middle : x, normed);
    reference_mlp(r, layer, normed, y);
    join(r, layer, "mlp", "mlp.fc2", middle, y);
    free(normed);
    free(middle);
}

void reference_embedding(const struct reference_model *r, double *y)
{
    int64_t h = r->model->hidden_size;
    const double *table = r->weight[row_of(r, "embedding", ".weight")];
    int position = row_of(r, "position", ".weight");
    for (int64_t t = 0; t < tokens_of(r); t++)
        memcpy(y + t * h, table + r->batch->token[t] * h, (size_t)h * sizeof *y);
    if (r->model->embed_layernorm) {
        double *x = doubles(tokens_of(r) * h);
        memcpy(x, y, (size_t)(tokens_of(r) * h) * sizeof *x);
        reference_layer_norm(r, "embedding_norm", x, y);
        free(x);
    }
    for (int64_t t = 0; position >= 0 && t < tokens_of(r); t++)
        for (int64_t j = 0; j < h; j++)
            y[t * h + j] += r->weight[position][r->batch->position[t] * h + j];
    drop(r, "embedding.dropout", y);
}

double reference_head(const struct reference_model *r, const double *x)
{
    int64_t tokens = tokens_of(r), v = r->model->vocab_size;
    double *normed = doubles(tokens * r->model->hidden_size), *logits = doubles(tokens * v);
    reference_layer_norm(r, "norm", x, normed);
    reference_linear(r, "head", false, normed, logits);
    for (int64_t i = 0; i < tokens * v; i++)
        logits[i] = reference_softcap(logits[i], r->model->final_logit_softcapping);
    double loss = reference_loss_forward(tokens, v, logits, r->batch->label, r->batch->loss_mask);
    free(normed);
    free(logits);
    return loss;
}

double reference_whole(const struct reference_model *r)
{
    int64_t count = tokens_of(r) * r->model->hidden_size;
    double *x = doubles(count), *y = doubles(count);
    reference_embedding(r, x);
    for (int layer = 0; layer < r->model->num_layers; layer++) {
        reference_block(r, layer, x, y);
        memcpy(x, y, (size_t)count * sizeof *x);
    }
    double loss = reference_head(r, x);
    free(x);
    free(y);
    return loss;
}

void reference_gradient(double (*f)(void *context), void *context, double *x, int64_t count, double *gradient)
{
    const double h = 1e-5; // small, because the slope of squared ReLU has a corner
    for (int64_t i = 0; i < count; i++) {
        double at = x[i], value[4];
        static const double steps[] = {1.0, -1.0, 2.0, -2.0};
        for (int k = 0; k < 4; k++) {
            x[i] = at + steps[k] * h;
            value[k] = f(context);
        }
        x[i] = at;
        gradient[i] = (8.0 * (value[0] - value[1]) - (value[2] - value[3])) / (12.0 * h);
    }
}
