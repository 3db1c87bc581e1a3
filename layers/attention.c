// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include <math.h>
#include <stdio.h>

/* q, k and v as columns of one fused matrix [T, (A + 2G)D], or v there and q and k as columns of another. */
struct heads {
    struct tensor q, k, v;
    struct tensor rotated; // q and k: rotated by position
};

/* qk: the matrix with q and k; `fused` itself, or [T, (A + G)D]. */
static struct heads split_heads(const struct attention *attention, const struct layer_context *context,
                                struct tensor fused, struct tensor qk)
{
    int64_t d = context->model->kv_channels, q_end = attention->heads * d,
            k_end = q_end + attention->groups * d;
    return (struct heads){
        .q = tensor_columns(qk, 0, q_end),
        .k = tensor_columns(qk, q_end, k_end),
        .v = tensor_columns(fused, k_end, k_end + attention->groups * d),
        .rotated = tensor_columns(qk, 0, k_end),
    };
}

/* The output of the projection, and the operands of the attention core. */
static struct heads projected(const struct attention *attention, const struct pass *pass)
{
    struct tensor fused = pass_tensor(pass, attention->fused);
    return split_heads(attention, pass->context, fused, fused);
}

static struct heads core_operands(const struct attention *attention, const struct pass *pass)
{
    struct tensor fused = pass_tensor(pass, attention->fused);
    return split_heads(attention, pass->context, fused,
                       attention->norms ? pass_tensor(pass, attention->normed) : fused);
}

/* The gradients of the operands of the attention core; of the projection's output with `projection`. */
static struct heads gradients_of(const struct attention *attention, const struct pass *pass, bool projection)
{
    struct tensor fused = pass_tensor(pass, attention->dfused);
    return split_heads(attention, pass->context, fused,
                       attention->norms && !projection ? pass_tensor(pass, attention->dnormed) : fused);
}

void attention_declare_params(struct declaration *d)
{
    const struct model_config *m = d->model;
    int64_t query = m->num_attention_heads * m->kv_channels, kv = m->num_query_groups * m->kv_channels;
    int first = d->out->count;
    declare_matrix(d, ROLE_QUERY, "attention.q.weight", query, m->hidden_size, 0, m->init_method_std);
    declare_kv_replicas(
        d, declare_matrix(d, ROLE_KEY, "attention.k.weight", kv, m->hidden_size, 0, m->init_method_std));
    declare_kv_replicas(
        d, declare_matrix(d, ROLE_VALUE, "attention.v.weight", kv, m->hidden_size, 0, m->init_method_std));
    declare_fused(d, first);
    if (model_has_qkv_bias(m)) {
        first = d->out->count;
        declare_sharded_bias(d, ROLE_QUERY, "attention.q.bias", query);
        declare_kv_replicas(d, declare_sharded_bias(d, ROLE_KEY, "attention.k.bias", kv));
        declare_kv_replicas(d, declare_sharded_bias(d, ROLE_VALUE, "attention.v.bias", kv));
        declare_fused(d, first);
    }
    if (m->qk_layernorm) {
        norm_declare_head_params(d, ROLE_QUERY_NORM, "attention.q_norm");
        norm_declare_head_params(d, ROLE_KEY_NORM, "attention.k_norm");
    }
    declare_matrix(d, ROLE_ATTENTION_OUT, "attention.proj.weight", m->hidden_size, query, 1,
                   declare_branch_std(d));
    if (m->add_bias_linear)
        declare_hidden_bias(d, ROLE_ATTENTION_OUT, "attention.proj.bias");
}

static void declare_norms(const struct layer_context *context, struct slot_layout *layout, int layer,
                          struct attention *attention)
{
    int64_t qk = (attention->heads + attention->groups) * context->model->kv_channels;
    attention->norms = context->model->qk_layernorm;
    if (!attention->norms)
        return;
    attention->q_norm = norm_declare_heads(context, layout, layer, ROLE_QUERY_NORM, attention->heads);
    attention->k_norm = norm_declare_heads(context, layout, layer, ROLE_KEY_NORM, attention->groups);
    attention->normed = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_INPUT, context->tokens, qk);
    attention->dnormed = slot_layout_add(layout, SCRATCH, context->tokens, qk);
}

struct attention attention_declare(const struct layer_context *context, struct slot_layout *layout, int layer)
{
    const struct model_config *model = context->model;
    const struct params *params = context->weights->params;
    int tp = context->groups->tp->size;
    int64_t tokens = context->tokens, d = model->kv_channels;
    char site[PARAM_NAME_CHARS];
    snprintf(site, sizeof site, "layers.%d.attention.core.dropout", layer);
    struct attention attention = {
        .layer = layer,
        .heads = model->num_attention_heads / tp,
        .groups = model->num_query_groups * params_kv_replicas(model, tp) / tp,
        .window = model_window(model, layer),
        .site = philox_named(context->seed, site),
    };
    attention.qkv = column_linear_declare(context, layout, params_weight(params, layer, ROLE_QUERY),
                                          params_bias(params, layer, ROLE_QUERY));
    attention.proj = row_linear_declare(context, layout, params_weight(params, layer, ROLE_ATTENTION_OUT),
                                        params_bias(params, layer, ROLE_ATTENTION_OUT));
    int64_t fused = (attention.heads + 2 * attention.groups) * d;
    attention.fused = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_INPUT, tokens, fused);
    declare_norms(context, layout, layer, &attention);
    attention.lse = slot_layout_add_f32(layout, RECOMPUTE_CORE_ATTENTION, KEEP_UNTIL_BACKWARD_INPUT,
                                        attention.heads, tokens);
    attention.out = slot_layout_add_of(layout, RECOMPUTE_CORE_ATTENTION, KEEP_UNTIL_BACKWARD_WEIGHT, tokens,
                                       attention.heads * d);
    attention.dfused = slot_layout_add(layout, KEEP_INPUT_TO_WEIGHT, tokens, fused);
    attention.dout = slot_layout_add(layout, SCRATCH, tokens, attention.heads * d);
    return attention;
}

/* Applies the rotary embedding to q and k, or its inverse to dq and dk. */
static enum status rotate(const struct pass *pass, struct heads heads, bool inverse)
{
    const struct model_config *model = pass->context->model;
    if (model->position_embedding != ROPE)
        return OK;
    return rope(pass->context->compute, (struct rope){
                                            .x = heads.rotated,
                                            .position = pass->batch->position,
                                            .head_dim = model->kv_channels,
                                            .base = model->rotary_base,
                                            .inverse = inverse,
                                            .interleaved = model->rotary_interleaved,
                                            .rotated = model_rotated_channels(model),
                                            .scaling = model_rope_scaling(model),
                                        });
}

/* This rank's first head. */
static int64_t first_head(const struct attention *attention, const struct pass *pass)
{
    return attention->heads * pass->context->groups->tp->rank;
}

static struct dropout core_dropout(const struct attention *attention, const struct pass *pass)
{
    const struct layer_context *context = pass->context;
    if (!pass->training || !(context->model->attention_dropout > 0.0))
        return (struct dropout){0};
    return (struct dropout){
        .probability = (float)context->model->attention_dropout,
        .generator = attention->site,
        .sample = pass->batch->sample,
        .sample_offset = pass->batch->sample_offset,
        .columns = context->model->seq_length,
        .column_begin = first_head(attention, pass),
    };
}

static struct attention_forward core(const struct attention *attention, const struct pass *pass)
{
    const struct layer_context *context = pass->context;
    const bool alibi = context->model->position_embedding == ALIBI;
    struct heads heads = core_operands(attention, pass);
    return (struct attention_forward){
        .q = heads.q,
        .k = heads.k,
        .v = heads.v,
        .batch = context->sequences,
        .sequence = context->tokens / context->sequences,
        .head_dim = context->model->kv_channels,
        .window = attention->window,
        .alibi = {.heads = alibi ? context->model->num_attention_heads : 0,
                  .begin = first_head(attention, pass)},
        .scale = (float)(1.0 / sqrt((double)context->model->kv_channels)),
        .softcap = (float)context->model->attn_logit_softcapping,
        .document = pass->batch->document,
        .dropout = core_dropout(attention, pass),
        .out = pass_tensor(pass, attention->out),
        .lse = pass_tensor(pass, attention->lse),
    };
}

enum status attention_forward_features(const struct attention *attention, const struct pass *pass,
                                       struct tensor x)
{
    struct tensor fused = pass_tensor(pass, attention->fused);
    TRY(column_linear_forward(&attention->qkv, pass, x, fused, (struct epilogue){0}));
    struct heads from = projected(attention, pass), to = core_operands(attention, pass);
    if (attention->norms) {
        TRY(norm_heads_forward(&attention->q_norm, pass, from.q, to.q));
        TRY(norm_heads_forward(&attention->k_norm, pass, from.k, to.k));
    }
    TRY(rotate(pass, to, false));
    const struct layer_context *context = pass->context;
    if (context->cache != NULL && context->cache->sequences > 0)
        return key_value_cache_attend(context->cache, attention->layer, context->compute,
                                      core(attention, pass));
    return attention_forward(context->compute, core(attention, pass));
}

enum status attention_forward_out(const struct attention *attention, const struct pass *pass,
                                  struct tensor *y)
{
    return row_linear_forward(&attention->proj, pass, pass_tensor(pass, attention->out), (struct tensor){0},
                              y);
}

enum status attention_forward_partial(const struct attention *attention, const struct pass *pass,
                                      struct tensor *partial)
{
    return row_linear_forward_partial(&attention->proj, pass, pass_tensor(pass, attention->out), partial);
}

enum status attention_layer_forward(const struct attention *attention, const struct pass *pass,
                                    struct tensor x, struct tensor *y)
{
    TRY(attention_forward_features(attention, pass, x));
    return attention_forward_out(attention, pass, y);
}

enum status attention_core_recompute(const struct attention *attention, const struct pass *pass)
{
    return attention_forward(pass->context->compute, core(attention, pass));
}

enum status attention_layer_backward_input(const struct attention *attention, const struct pass *pass,
                                           struct tensor addend, struct tensor *dx)
{
    const struct layer_context *context = pass->context;
    struct tensor dout = pass_tensor(pass, attention->dout), dfused = pass_tensor(pass, attention->dfused);
    TRY(row_linear_backward_input(&attention->proj, pass, dout, (struct epilogue){0}));
    struct heads gradients = gradients_of(attention, pass, false);
    TRY(attention_backward(context->compute, (struct attention_backward){
                                                 .forward = core(attention, pass),
                                                 .dout = dout,
                                                 .dq = gradients.q,
                                                 .dk = gradients.k,
                                                 .dv = gradients.v,
                                             }));
    TRY(rotate(pass, gradients, true));
    if (attention->norms) {
        struct heads x = projected(attention, pass), before = gradients_of(attention, pass, true);
        TRY(norm_heads_backward_input(&attention->q_norm, pass, gradients.q, x.q, before.q));
        TRY(norm_heads_backward_input(&attention->k_norm, pass, gradients.k, x.k, before.k));
    }
    return column_linear_backward_input(&attention->qkv, pass, dfused, addend, dx);
}

enum status attention_layer_backward_weight(const struct attention *attention, const struct pass *pass,
                                            struct tensor x)
{
    struct event gathered;
    TRY(column_linear_gather(&attention->qkv, pass, x, &gathered));
    TRY(row_linear_backward_weight(&attention->proj, pass, pass_tensor(pass, attention->out)));
    if (attention->norms) {
        TRY(norm_layer_backward_weight(&attention->q_norm, pass));
        TRY(norm_layer_backward_weight(&attention->k_norm, pass));
    }
    return column_linear_backward_weight(&attention->qkv, pass, x, gathered,
                                         pass_tensor(pass, attention->dfused));
}
