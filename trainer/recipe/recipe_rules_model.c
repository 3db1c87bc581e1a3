// SPDX-License-Identifier: Apache-2.0
/* Rules between keys of the model, whatever its layout. */
#include "trainer/recipe/recipe_rules.h"

static bool head_width_holds(const struct view *v)
{
    const struct model_config *m = &v->recipe->model;
    return v->given[GIVEN_KV] || m->hidden_size % m->num_attention_heads == 0;
}

static void head_width_message(const struct view *v, struct text *out)
{
    const struct model_config *m = &v->recipe->model;
    text_add(out, "model.hidden_size %lld is not divisible by model.num_attention_heads %lld",
             (long long)m->hidden_size, (long long)m->num_attention_heads);
}

static int64_t heads_of(const struct recipe *r)
{
    return r->model.num_attention_heads;
}

static bool rope_holds(const struct view *v)
{
    const struct model_config *m = &v->recipe->model;
    int64_t rotated = model_rotated_channels(m);
    return m->position_embedding != ROPE || (m->kv_channels % 2 == 0 && rotated > 0 && rotated % 2 == 0);
}

static void rope_message(const struct view *v, struct text *out)
{
    const struct model_config *m = &v->recipe->model;
    if (m->kv_channels > 0 && m->kv_channels % 2 == 0) {
        text_add(out,
                 "model.rotary_percent %g rotates %lld of model.kv_channels %lld: rope needs a positive even "
                 "number",
                 m->rotary_percent, (long long)model_rotated_channels(m), (long long)m->kv_channels);
        return;
    }
    text_add(out, "model.kv_channels %lld%s must be even and positive: rope rotates pairs of channels",
             (long long)v->recipe->model.kv_channels,
             v->given[GIVEN_KV] ? "" : " (hidden_size / num_attention_heads)");
}

static int64_t two_heads_of(const struct recipe *r)
{
    return 2 * r->model.num_attention_heads;
}

static bool scaling_holds(const struct view *v)
{
    const struct rope_scaling scaling = model_rope_scaling(&v->recipe->model);
    return (scaling.kind != ROPE_LLAMA3 && scaling.kind != ROPE_YARN) || scaling.low < scaling.high;
}

static void scaling_message(const struct view *v, struct text *out)
{
    const struct model_config *m = &v->recipe->model;
    bool yarn = m->rope_scaling_type == ROPE_YARN;
    text_add(
        out, "model.%s %g must be less than model.%s %g", yarn ? "rope_beta_slow" : "rope_low_freq_factor",
        yarn ? m->rope_beta_slow : m->rope_low_freq_factor, yarn ? "rope_beta_fast" : "rope_high_freq_factor",
        yarn ? m->rope_beta_fast : m->rope_high_freq_factor);
}

/* The number of entries that are neither 0 nor 1. */
static size_t other_entries(const struct layer_list *layers)
{
    size_t others = 0;
    for (size_t i = 0; i < layers->count; i++)
        others += layers->list[i] > 1;
    return others;
}

static bool window_layers_hold(const struct view *v)
{
    const struct layer_list *skip = &v->recipe->model.window_attn_skip_freq;
    return skip->count == 0 || skip->single ||
           ((int64_t)skip->count == v->recipe->model.num_layers && other_entries(skip) == 0);
}

static void window_layers_message(const struct view *v, struct text *out)
{
    const struct model_config *m = &v->recipe->model;
    const struct layer_list *skip = &m->window_attn_skip_freq;
    text_add(out,
             "model.window_attn_skip_freq has %zu entries, %zu of which are neither 0 nor 1; use 1 (window) "
             "or 0 (full attention) for each of the model.num_layers %lld layers",
             skip->count, other_entries(skip), (long long)m->num_layers);
}

static const struct rule rules[] = {
    {"model.hidden_size"
     " "
     "model.num_attention_heads"
     " model.kv_channels",
     head_width_holds,
     head_width_message,
     {{.key = "model.hidden_size", .grid = heads_of}, {.key = "model.num_attention_heads"}}},
    {"model.kv_channels "
     "model.hidden_size"
     " "
     "model.num_attention_heads"
     " model.position_embedding_type model.rotary_percent",
     rope_holds,
     rope_message,
     {{.key = "model.hidden_size", .grid = two_heads_of},
      {.key = "model.kv_channels"},
      {.key = "model.num_attention_heads"}}},
    {"model.rope_low_freq_factor model.rope_high_freq_factor model.rope_beta_slow model.rope_beta_fast "
     "model.use_rope_scaling model.rope_scaling_type",
     scaling_holds,
     scaling_message,
     {{0}}},
    {"model.window_attn_skip_freq model.num_layers", window_layers_hold, window_layers_message, {{0}}},
};
const struct rules recipe_model_rules = RULES_OF(rules);
