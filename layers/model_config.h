// SPDX-License-Identifier: Apache-2.0
/* The mathematics of a model, and nothing about where it runs: what the layers read of a recipe.
 *
 * Two families are two settings of these fields. GPT-2/3: learned positions, LayerNorm, GELU, biases,
 * tied embeddings. Llama: RoPE, RMSNorm, SwiGLU, grouped queries, no biases, untied. The recipe checks
 * the values (trainer/recipe/recipe_check.c); layers may rely on every promise written beside a field.
 *
 * The trap: no degree of parallelism belongs here. A field that changed with the layout would let the
 * layout change what is computed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum position_embedding { LEARNED_ABSOLUTE, ROPE };
enum normalization { LAYER_NORM, RMS_NORM };

enum activation {
    GELU,      // x Phi(x), with erf
    GELU_TANH, // the tanh approximation: GPT-2's, and Megatron's when it fuses bias and GELU
    SWIGLU     // silu(gate) * up: two matrices in, F features each
};

struct model_config {
    int64_t num_layers;                   // >= 1
    int64_t hidden_size;                  // H
    int64_t num_attention_heads;          // A
    int64_t num_query_groups;             // key/value heads: divides A; A itself is plain attention
    int64_t ffn_hidden_size;              // F
    int64_t kv_channels;                  // D, of one head; even with ROPE; A * D need not be H
    int64_t seq_length;                   // S
    int64_t vocab_size;                   // V, the real one: padding never reaches the softmax
    int64_t make_vocab_size_divisible_by; // rows of padding in memory only, for matrix multiplication
    enum position_embedding position_embedding;
    double rotary_base; // 10000 in RoPE's paper, 500000 in Llama 3
    enum normalization normalization;
    double norm_epsilon;
    enum activation activation;
    bool add_bias_linear;                     // on the linear layers (not on the head)
    bool tie_word_embeddings;                 // the head is the embedding
    double hidden_dropout, attention_dropout; // [0, 1)
    double init_method_std;                   // the last matrix of each branch: / sqrt(2 num_layers)
};
