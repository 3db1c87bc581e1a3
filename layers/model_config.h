// SPDX-License-Identifier: Apache-2.0
/* Model architecture: the recipe keys that the layers read. Independent of the parallel layout.
 *
 * Two model families are two settings of these fields. GPT-2/3: learned positions, LayerNorm, GELU, biases,
 * tied embeddings. Llama: RoPE, RMSNorm, SwiGLU, grouped-query attention, no biases, untied embeddings. The
 * recipe validates the values (trainer/recipe/recipe_check.c); layers may rely on the constraints listed at
 * each field.
 *
 * Caution: no parallel degree belongs here. A field that depended on the layout would let the layout change
 * the computed result. */
#pragma once

#include "kernels/activation.h"
#include "kernels/rope_scaling.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum position_embedding { LEARNED_ABSOLUTE, ROPE, ALIBI };
enum normalization { LAYER_NORM, RMS_NORM };
/* Parallel: both branches of a block read its input, through one norm or through two. */
enum block_type { BLOCK_SEQUENTIAL, BLOCK_PARALLEL, BLOCK_PARALLEL_TWO_NORMS };

/* A list of integers about layers, or a single integer in place of a list. */
struct layer_list {
    int64_t *list;
    size_t count;
    bool single; // count is 1
};

struct model_config {
    int64_t num_layers;                   // >= 1
    int64_t hidden_size;                  // H
    int64_t num_attention_heads;          // A
    int64_t num_query_groups;             // key/value heads: divides A; equal to A: multi-head attention
    int64_t ffn_hidden_size;              // F
    int64_t kv_channels;                  // D, size of one head; even with ROPE; A * D may differ from H
    int64_t seq_length;                   // S
    int64_t vocab_size;                   // V without padding: padded rows never reach the softmax
    int64_t make_vocab_size_divisible_by; // padding rows, in memory only, for efficient matmuls
    enum position_embedding position_embedding;
    double rotary_base;      // 10000 in RoPE's paper, 500000 in Llama 3
    double rotary_percent;   // the share of a head's channels that are rotated, from the first
    bool rotary_interleaved; // pairs (2i, 2i + 1) in place of (i, i + D/2)
    bool use_rope_scaling;
    enum rope_scaling_kind rope_scaling_type; // with use_rope_scaling; not ROPE_UNSCALED
    double rope_scaling_factor;
    double rope_low_freq_factor, rope_high_freq_factor; // Llama 3
    double rope_beta_fast, rope_beta_slow;              // YaRN
    int64_t rope_original_max_position_embeddings;      // Llama 3, YaRN
    enum block_type block_type;
    int64_t window_size;                     // tokens that a token attends to, with itself; 0: all
    struct layer_list window_attn_skip_freq; // layers with the window: 1 or 0 each; a single N: all but every
                                             // N-th; empty: all
    double attn_logit_softcapping;           // attention scores x become cap tanh(x / cap); 0: none
    double final_logit_softcapping;          // the same of the logits
    enum normalization normalization;
    double norm_epsilon;
    enum activation activation;
    bool add_bias_linear;                     // biases of the linear layers (never of the head)
    bool add_qkv_bias;                        // biases of q, k and v, also without add_bias_linear
    bool qk_layernorm;                        // normalization of each head of q and k, before RoPE
    bool embed_layernorm;                     // a normalization after the word embedding
    bool tie_word_embeddings;                 // the head uses the embedding matrix
    double hidden_dropout, attention_dropout; // [0, 1)
    double init_method_std;                   // std of the initialization; the last matrix of each branch: /
                                              // sqrt(2 num_layers)
};

static inline bool model_is_gated(const struct model_config *m)
{
    return activation_is_gated(m->activation);
}

static inline bool model_has_qkv_bias(const struct model_config *m)
{
    return m->add_bias_linear || m->add_qkv_bias;
}

/* The channels of a head that RoPE rotates. */
static inline int64_t model_rotated_channels(const struct model_config *m)
{
    return (int64_t)((double)m->kv_channels * m->rotary_percent);
}

/* The window of a layer's attention; 0: none. */
static inline int64_t model_window(const struct model_config *m, int64_t layer)
{
    const struct layer_list *skip = &m->window_attn_skip_freq;
    const bool full =
        skip->single ? (layer + 1) % skip->list[0] == 0 : skip->count > 0 && skip->list[layer] == 0;
    return full ? 0 : m->window_size;
}

static inline struct rope_scaling model_rope_scaling(const struct model_config *m)
{
    bool yarn = m->rope_scaling_type == ROPE_YARN;
    return (struct rope_scaling){
        .kind = m->use_rope_scaling ? m->rope_scaling_type : ROPE_UNSCALED,
        .factor = m->rope_scaling_factor,
        .low = yarn ? m->rope_beta_slow : m->rope_low_freq_factor,
        .high = yarn ? m->rope_beta_fast : m->rope_high_freq_factor,
        .original = (double)m->rope_original_max_position_embeddings,
    };
}
