// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include <math.h>
#include <stdio.h>

/* q, k and v as columns of one fused matrix [T, (A + 2G)D]. */
struct heads {
    struct tensor q, k, v;
    struct tensor rotated; // q and k: rotated by position
};

static struct heads split_heads(const struct attention *attention, const struct env *env, struct tensor fused)
{
    int64_t d = env->model->kv_channels, q_end = attention->heads * d, k_end = q_end + attention->groups * d;
    return (struct heads){
        .q = tensor_columns(fused, 0, q_end),
        .k = tensor_columns(fused, q_end, k_end),
        .v = tensor_columns(fused, k_end, k_end + attention->groups * d),
        .rotated = tensor_columns(fused, 0, k_end),
    };
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
    if (m->add_bias_linear) {
        first = d->out->count;
        declare_sharded_bias(d, ROLE_QUERY, "attention.q.bias", query);
        declare_kv_replicas(d, declare_sharded_bias(d, ROLE_KEY, "attention.k.bias", kv));
        declare_kv_replicas(d, declare_sharded_bias(d, ROLE_VALUE, "attention.v.bias", kv));
        declare_fused(d, first);
    }
    declare_matrix(d, ROLE_ATTENTION_OUT, "attention.proj.weight", m->hidden_size, query, 1,
                   declare_branch_std(d));
    if (m->add_bias_linear)
        declare_hidden_bias(d, ROLE_ATTENTION_OUT, "attention.proj.bias");
}

struct attention attention_declare(const struct env *env, struct slot_layout *layout, int layer)
{
    const struct model_config *model = env->model;
    const struct params *params = env->weights->params;
    int tp = env->groups->tp->size;
    int64_t tokens = env->tokens, d = model->kv_channels;
    char site[PARAM_NAME_CHARS];
    snprintf(site, sizeof site, "layers.%d.attention.core.dropout", layer);
    struct attention attention = {
        .heads = model->num_attention_heads / tp,
        .groups = model->num_query_groups * params_kv_replicas(model, tp) / tp,
        .site = philox_named(env->seed, site),
    };
    attention.qkv = column_linear_declare(env, layout, params_weight(params, layer, ROLE_QUERY),
                                          params_bias(params, layer, ROLE_QUERY));
    attention.proj = row_linear_declare(env, layout, params_weight(params, layer, ROLE_ATTENTION_OUT),
                                        params_bias(params, layer, ROLE_ATTENTION_OUT));
    int64_t fused = (attention.heads + 2 * attention.groups) * d;
    attention.fused = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_INPUT, tokens, fused);
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
    const struct model_config *model = pass->env->model;
    if (model->position_embedding != ROPE)
        return OK;
    return rope(pass->env->compute, (struct rope){
                                        .x = heads.rotated,
                                        .position = pass->batch->position,
                                        .head_dim = model->kv_channels,
                                        .base = model->rotary_base,
                                        .inverse = inverse,
                                    });
}

static struct dropout core_dropout(const struct attention *attention, const struct pass *pass)
{
    const struct env *env = pass->env;
    if (!pass->training || !(env->model->attention_dropout > 0.0))
        return (struct dropout){0};
    return (struct dropout){
        .probability = (float)env->model->attention_dropout,
        .generator = attention->site,
        .sample = pass->batch->sample,
        .sample_offset = pass->batch->sample_offset,
        .columns = env->model->seq_length,
        .column_begin = attention->heads * env->groups->tp->rank, // this rank's first head
    };
}

static struct attention_forward core(const struct attention *attention, const struct pass *pass)
{
    const struct env *env = pass->env;
    struct heads heads = split_heads(attention, env, pass_tensor(pass, attention->fused));
    return (struct attention_forward){
        .q = heads.q,
        .k = heads.k,
        .v = heads.v,
        .batch = env->sequences,
        .sequence = env->tokens / env->sequences,
        .head_dim = env->model->kv_channels,
        .scale = (float)(1.0 / sqrt((double)env->model->kv_channels)),
        .document = pass->batch->document,
        .dropout = core_dropout(attention, pass),
        .out = pass_tensor(pass, attention->out),
        .lse = pass_tensor(pass, attention->lse),
    };
}

enum status attention_layer_forward(const struct attention *attention, const struct pass *pass,
                                    struct tensor x, struct tensor *y)
{
    const struct env *env = pass->env;
    struct tensor fused = pass_tensor(pass, attention->fused);
    TRY(column_linear_forward(&attention->qkv, pass, x, fused, (struct epilogue){0}));
    TRY(rotate(pass, split_heads(attention, env, fused), false));
    struct attention_forward args = core(attention, pass);
    TRY(attention_forward(env->compute, args));
    return row_linear_forward(&attention->proj, pass, args.out, y);
}

enum status attention_core_recompute(const struct attention *attention, const struct pass *pass)
{
    return attention_forward(pass->env->compute, core(attention, pass));
}

enum status attention_layer_backward_input(const struct attention *attention, const struct pass *pass,
                                           struct tensor *dx)
{
    const struct env *env = pass->env;
    struct tensor dout = pass_tensor(pass, attention->dout), dfused = pass_tensor(pass, attention->dfused);
    TRY(row_linear_backward_input(&attention->proj, pass, dout, (struct epilogue){0}));
    struct heads gradients = split_heads(attention, env, dfused);
    TRY(attention_backward(env->compute, (struct attention_backward){
                                             .forward = core(attention, pass),
                                             .dout = dout,
                                             .dq = gradients.q,
                                             .dk = gradients.k,
                                             .dv = gradients.v,
                                         }));
    TRY(rotate(pass, gradients, true));
    return column_linear_backward_input(&attention->qkv, pass, dfused, dx);
}

enum status attention_layer_backward_weight(const struct attention *attention, const struct pass *pass,
                                            struct tensor x)
{
    struct event gathered;
    TRY(column_linear_gather(&attention->qkv, pass, x, &gathered));
    TRY(row_linear_backward_weight(&attention->proj, pass, pass_tensor(pass, attention->out)));
    return column_linear_backward_weight(&attention->qkv, pass, x, gathered,
                                         pass_tensor(pass, attention->dfused));
}
