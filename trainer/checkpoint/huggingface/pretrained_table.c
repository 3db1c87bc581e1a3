// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_table.h"

#include <stddef.h>
#include <string.h>

/* ---- keys ---- */

/* Of every architecture: no effect on logits, or read elsewhere (architectures, model_type, dtype). */
static const char *const ignored_keys[] = {"architectures",
                                           "model_type",
                                           "torch_dtype",
                                           "dtype",
                                           "transformers_version",
                                           "_name_or_path",
                                           "name_or_path",
                                           "use_cache",
                                           "bos_token_id",
                                           "eos_token_id",
                                           "pad_token_id",
                                           "unk_token_id",
                                           "decoder_start_token_id",
                                           "task_specific_params",
                                           "pretraining_tp",
                                           "gradient_checkpointing",
                                           "attn_implementation",
                                           "_attn_implementation",
                                           "_attn_implementation_autoset",
                                           "output_attentions",
                                           "output_hidden_states",
                                           "return_dict",
                                           "id2label",
                                           "label2id",
                                           "problem_type",
                                           "finetuning_task",
                                           "chunk_size_feed_forward",
                                           "is_encoder_decoder",
                                           "tokenizer_class",
                                           "prefix",
                                           "rope_scaling",
                                           "rope_parameters", // read with rope_theta
                                           NULL};

#define KEY(name_, kind_, model_key_, absent_)                                                      \
    {                                                                                               \
        .name = (name_), .kind = PRETRAINED_##kind_, .model_key = (model_key_), .absent = (absent_) \
    }
#define FIXED(name_, value_) KEY(name_, FIXED, NULL, value_)
#define IGNORED(name_)       KEY(name_, IGNORED, NULL, "")

/* Llama and the models derived from it. */
#define DECODER_KEYS                                                                                      \
    KEY("vocab_size", COUNT, "vocab_size", NULL), KEY("hidden_size", COUNT, "hidden_size", NULL),         \
        KEY("intermediate_size", COUNT, "ffn_hidden_size", NULL),                                         \
        KEY("num_hidden_layers", COUNT, "num_layers", NULL),                                              \
        KEY("num_attention_heads", COUNT, "num_attention_heads", NULL),                                   \
        KEY("hidden_act", ACTIVATION, "activation", "silu"),                                              \
        KEY("max_position_embeddings", COUNT, "seq_length", NULL),                                        \
        KEY("initializer_range", REAL, "init_method_std", "0.02"),                                        \
        KEY("rms_norm_eps", REAL, "norm_epsilon", "1e-06"),                                               \
        KEY("tie_word_embeddings", BOOL, "tie_word_embeddings", "false"),                                 \
        KEY("attention_dropout", REAL, "attention_dropout", "0"), KEY("rope_theta", ROPE, NULL, "10000"), \
        KEY("layer_types", LAYER_TYPES, NULL, ""), FIXED("partial_rotary_factor", "1"),                   \
        FIXED("quantization_config", "")

static const struct pretrained_key llama_keys[] = {DECODER_KEYS,
                                                   KEY("num_key_value_heads", COUNT, "num_query_groups", ""),
                                                   KEY("head_dim", COUNT, "kv_channels", ""),
                                                   KEY("attention_bias", BOOL, "add_bias_linear", "false"),
                                                   KEY("mlp_bias", BOOL, "add_bias_linear", "false"),
                                                   {0}};

static const struct pretrained_key mistral_keys[] = {
    DECODER_KEYS,
    KEY("num_key_value_heads", COUNT, "num_query_groups", NULL),
    KEY("head_dim", COUNT, "kv_channels", ""),
    KEY("sliding_window", WINDOW, NULL, "4096"),
    FIXED("attention_bias", "false"),
    {0}};

#define QWEN_WINDOW_KEYS                                                                             \
    KEY("use_sliding_window", WINDOW_SWITCH, NULL, ""), KEY("sliding_window", WINDOW, NULL, "4096"), \
        IGNORED("max_window_layers") /* read with sliding_window */

static const struct pretrained_key qwen2_keys[] = {
    DECODER_KEYS,
    KEY("num_key_value_heads", COUNT, "num_query_groups", NULL),
    KEY("head_dim", COUNT, "kv_channels", ""),
    QWEN_WINDOW_KEYS,
    {0}};

static const struct pretrained_key qwen3_keys[] = {
    DECODER_KEYS,
    KEY("num_key_value_heads", COUNT, "num_query_groups", NULL),
    KEY("head_dim", COUNT, "kv_channels", "128"),
    FIXED("attention_bias", "false"),
    QWEN_WINDOW_KEYS,
    {0}};

static const struct pretrained_key gpt2_keys[] = {
    KEY("vocab_size", COUNT, "vocab_size", NULL),
    KEY("n_positions", COUNT, "seq_length", NULL),
    KEY("n_embd", COUNT, "hidden_size", NULL),
    KEY("n_layer", COUNT, "num_layers", NULL),
    KEY("n_head", COUNT, "num_attention_heads", NULL),
    KEY("n_inner", COUNT, "ffn_hidden_size", ""),
    KEY("activation_function", ACTIVATION, "activation", "gelu_new"),
    KEY("resid_pdrop", REAL, "hidden_dropout", "0.1"),
    KEY("embd_pdrop", REAL, "hidden_dropout", "0.1"),
    KEY("attn_pdrop", REAL, "attention_dropout", "0.1"),
    KEY("layer_norm_epsilon", REAL, "norm_epsilon", "1e-05"),
    KEY("initializer_range", REAL, "init_method_std", "0.02"),
    KEY("tie_word_embeddings", BOOL, "tie_word_embeddings", "true"),
    FIXED("scale_attn_weights", "true"),
    FIXED("scale_attn_by_inverse_layer_idx", "false"),
    FIXED("add_cross_attention", "false"),
    FIXED("quantization_config", ""),
    IGNORED("reorder_and_upcast_attn"),
    IGNORED("n_ctx"),
    IGNORED("summary_type"),
    IGNORED("summary_use_proj"),
    IGNORED("summary_activation"),
    IGNORED("summary_proj_to_labels"),
    IGNORED("summary_first_dropout"),
    {0}};

/* Files have hidden_size or n_embed, and likewise for layers and heads. */
static const struct pretrained_key bloom_keys[] = {
    KEY("vocab_size", COUNT, "vocab_size", "250880"),
    KEY("hidden_size", COUNT, "hidden_size", ""),
    KEY("n_embed", COUNT, "hidden_size", ""),
    KEY("n_layer", COUNT, "num_layers", ""),
    KEY("num_hidden_layers", COUNT, "num_layers", ""),
    KEY("n_head", COUNT, "num_attention_heads", ""),
    KEY("num_attention_heads", COUNT, "num_attention_heads", ""),
    KEY("seq_length", COUNT, "seq_length", "2048"), // of the training: ALiBi has no limit
    KEY("layer_norm_epsilon", REAL, "norm_epsilon", "1e-05"),
    KEY("initializer_range", REAL, "init_method_std", "0.02"),
    KEY("hidden_dropout", REAL, "hidden_dropout", "0"),
    KEY("attention_dropout", REAL, "attention_dropout", "0"),
    KEY("tie_word_embeddings", BOOL, "tie_word_embeddings", "true"),
    FIXED("apply_residual_connection_post_layernorm", "false"),
    FIXED("quantization_config", ""),
    IGNORED("n_inner"), // the MLP always has four times the hidden size
    IGNORED("slow_but_exact"),
    IGNORED("attention_softmax_in_fp32"),
    IGNORED("bias_dropout_fusion"),
    IGNORED("masked_softmax_fusion"),
    IGNORED("offset_alibi"),
    IGNORED("skip_bias_add"),
    IGNORED("skip_bias_add_qkv"),
    {0}};

/* The first name of an activation is written. */
static const struct pretrained_pair plain_activations[] = {{"gelu_new", "gelu_tanh"},
                                                           {"gelu", "gelu"},
                                                           {"gelu_pytorch_tanh", "gelu_tanh"},
                                                           {"gelu_fast", "gelu_tanh"},
                                                           {0}};
static const struct pretrained_pair gated_activations[] = {{"silu", "swiglu"}, {"swish", "swiglu"}, {0}};

static const struct pretrained_pair decoder_implied[] = {
    {"position_embedding_type", "rope"}, {"normalization", "RMSNorm"}, {0}};
static const struct pretrained_pair decoder_implied_no_bias[] = {
    {"position_embedding_type", "rope"}, {"normalization", "RMSNorm"}, {"add_bias_linear", "false"}, {0}};
static const struct pretrained_pair qwen2_implied[] = {{"position_embedding_type", "rope"},
                                                       {"normalization", "RMSNorm"},
                                                       {"add_bias_linear", "false"},
                                                       {"add_qkv_bias", "true"},
                                                       {0}};
static const struct pretrained_pair qwen3_implied[] = {{"position_embedding_type", "rope"},
                                                       {"normalization", "RMSNorm"},
                                                       {"add_bias_linear", "false"},
                                                       {"qk_layernorm", "true"},
                                                       {0}};
static const struct pretrained_pair bloom_implied[] = {
    {"position_embedding_type", "alibi"}, {"normalization", "LayerNorm"}, {"activation", "gelu_tanh"},
    {"add_bias_linear", "true"},          {"embed_layernorm", "true"},    {0}};
static const struct pretrained_pair gpt2_implied[] = {{"position_embedding_type", "learned_absolute"},
                                                      {"normalization", "LayerNorm"},
                                                      {"add_bias_linear", "true"},
                                                      {0}};

/* ---- tensors ---- */

#define SAME(name_, ours_)                  \
    {                                       \
        .name = (name_), .parts = { ours_ } \
    }
#define TRANSPOSED(name_, ours_)                                           \
    {                                                                      \
        .name = (name_), .parts = {ours_}, .layout = PRETRAINED_TRANSPOSED \
    }

/* RoPE needs no permutation: both rotate channels (i, i + D/2) of a head. */
static const struct pretrained_row decoder_rows[] = {
    SAME("model.embed_tokens.weight", "embedding.weight"),
    SAME("model.layers.*.input_layernorm.weight", "layers.*.norm1.weight"),
    SAME("model.layers.*.self_attn.q_proj.weight", "layers.*.attention.q.weight"),
    SAME("model.layers.*.self_attn.k_proj.weight", "layers.*.attention.k.weight"),
    SAME("model.layers.*.self_attn.v_proj.weight", "layers.*.attention.v.weight"),
    SAME("model.layers.*.self_attn.q_proj.bias", "layers.*.attention.q.bias"),
    SAME("model.layers.*.self_attn.k_proj.bias", "layers.*.attention.k.bias"),
    SAME("model.layers.*.self_attn.v_proj.bias", "layers.*.attention.v.bias"),
    SAME("model.layers.*.self_attn.q_norm.weight", "layers.*.attention.q_norm.weight"),
    SAME("model.layers.*.self_attn.k_norm.weight", "layers.*.attention.k_norm.weight"),
    SAME("model.layers.*.self_attn.o_proj.weight", "layers.*.attention.proj.weight"),
    SAME("model.layers.*.self_attn.o_proj.bias", "layers.*.attention.proj.bias"),
    SAME("model.layers.*.post_attention_layernorm.weight", "layers.*.norm2.weight"),
    SAME("model.layers.*.mlp.gate_proj.weight", "layers.*.mlp.gate.weight"),
    SAME("model.layers.*.mlp.gate_proj.bias", "layers.*.mlp.gate.bias"),
    SAME("model.layers.*.mlp.up_proj.weight", "layers.*.mlp.up.weight"),
    SAME("model.layers.*.mlp.up_proj.bias", "layers.*.mlp.up.bias"),
    SAME("model.layers.*.mlp.down_proj.weight", "layers.*.mlp.fc2.weight"),
    SAME("model.layers.*.mlp.down_proj.bias", "layers.*.mlp.fc2.bias"),
    SAME("model.norm.weight", "norm.weight"),
    SAME("lm_head.weight", "head.weight"),
    {0}};
static const char *const decoder_ignored[] = {".self_attn.rotary_emb.inv_freq", NULL};

static const struct pretrained_row gpt2_rows[] = {
    SAME("transformer.wte.weight", "embedding.weight"),
    SAME("transformer.wpe.weight", "position.weight"),
    SAME("transformer.h.*.ln_1.weight", "layers.*.norm1.weight"),
    SAME("transformer.h.*.ln_1.bias", "layers.*.norm1.bias"),
    {.name = "transformer.h.*.attn.c_attn.weight",
     .parts = {"layers.*.attention.q.weight", "layers.*.attention.k.weight", "layers.*.attention.v.weight"},
     .layout = PRETRAINED_TRANSPOSED},
    {.name = "transformer.h.*.attn.c_attn.bias",
     .parts = {"layers.*.attention.q.bias", "layers.*.attention.k.bias", "layers.*.attention.v.bias"}},
    TRANSPOSED("transformer.h.*.attn.c_proj.weight", "layers.*.attention.proj.weight"),
    SAME("transformer.h.*.attn.c_proj.bias", "layers.*.attention.proj.bias"),
    SAME("transformer.h.*.ln_2.weight", "layers.*.norm2.weight"),
    SAME("transformer.h.*.ln_2.bias", "layers.*.norm2.bias"),
    TRANSPOSED("transformer.h.*.mlp.c_fc.weight", "layers.*.mlp.fc1.weight"),
    SAME("transformer.h.*.mlp.c_fc.bias", "layers.*.mlp.fc1.bias"),
    TRANSPOSED("transformer.h.*.mlp.c_proj.weight", "layers.*.mlp.fc2.weight"),
    SAME("transformer.h.*.mlp.c_proj.bias", "layers.*.mlp.fc2.bias"),
    SAME("transformer.ln_f.weight", "norm.weight"),
    SAME("transformer.ln_f.bias", "norm.bias"),
    SAME("lm_head.weight", "head.weight"),
    {0}};
#define QUERY_KEY_VALUE(kind)                                                                                \
    {                                                                                                        \
        .name = "transformer.h.*.self_attention.query_key_value." kind,                                      \
        .parts = {"layers.*.attention.q." kind, "layers.*.attention.k." kind, "layers.*.attention.v." kind}, \
        .layout = PRETRAINED_HEADS                                                                           \
    }
static const struct pretrained_row bloom_rows[] = {
    SAME("transformer.word_embeddings.weight", "embedding.weight"),
    SAME("transformer.word_embeddings_layernorm.weight", "embedding_norm.weight"),
    SAME("transformer.word_embeddings_layernorm.bias", "embedding_norm.bias"),
    SAME("transformer.h.*.input_layernorm.weight", "layers.*.norm1.weight"),
    SAME("transformer.h.*.input_layernorm.bias", "layers.*.norm1.bias"),
    QUERY_KEY_VALUE("weight"),
    QUERY_KEY_VALUE("bias"),
    SAME("transformer.h.*.self_attention.dense.weight", "layers.*.attention.proj.weight"),
    SAME("transformer.h.*.self_attention.dense.bias", "layers.*.attention.proj.bias"),
    SAME("transformer.h.*.post_attention_layernorm.weight", "layers.*.norm2.weight"),
    SAME("transformer.h.*.post_attention_layernorm.bias", "layers.*.norm2.bias"),
    SAME("transformer.h.*.mlp.dense_h_to_4h.weight", "layers.*.mlp.fc1.weight"),
    SAME("transformer.h.*.mlp.dense_h_to_4h.bias", "layers.*.mlp.fc1.bias"),
    SAME("transformer.h.*.mlp.dense_4h_to_h.weight", "layers.*.mlp.fc2.weight"),
    SAME("transformer.h.*.mlp.dense_4h_to_h.bias", "layers.*.mlp.fc2.bias"),
    SAME("transformer.ln_f.weight", "norm.weight"),
    SAME("transformer.ln_f.bias", "norm.bias"),
    SAME("lm_head.weight", "head.weight"),
    {0}};
static const char *const bloom_ignored[] = {NULL};

static const char *const gpt2_ignored[] = {".attn.bias", ".attn.masked_bias", NULL};

/* ---- architectures ---- */

#define DECODER(name_, type_, keys_, implied_, whole_)                                 \
    {                                                                                  \
        .name = (name_), .model_type = (type_), .prefix = "model.", .keys = (keys_),   \
        .activations = gated_activations, .implied = (implied_), .rows = decoder_rows, \
        .ignored_tensors = decoder_ignored, .needs_whole_heads = (whole_)              \
    }

static const struct pretrained_architecture architectures[] = {
    {.name = "GPT2LMHeadModel",
     .model_type = "gpt2",
     .prefix = "transformer.",
     .keys = gpt2_keys,
     .activations = plain_activations,
     .implied = gpt2_implied,
     .rows = gpt2_rows,
     .ignored_tensors = gpt2_ignored},
    {.name = "BloomForCausalLM",
     .model_type = "bloom",
     .prefix = "transformer.",
     .keys = bloom_keys,
     .activations = plain_activations,
     .implied = bloom_implied,
     .rows = bloom_rows,
     .ignored_tensors = bloom_ignored},
    DECODER("LlamaForCausalLM", "llama", llama_keys, decoder_implied, true),
    DECODER("MistralForCausalLM", "mistral", mistral_keys, decoder_implied_no_bias, false),
    DECODER("Qwen2ForCausalLM", "qwen2", qwen2_keys, qwen2_implied, false),
    DECODER("Qwen3ForCausalLM", "qwen3", qwen3_keys, qwen3_implied, false),
};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

const struct pretrained_architecture *pretrained_architecture(int index)
{
    return index >= 0 && index < ARCHITECTURES ? &architectures[index] : NULL;
}

const struct pretrained_architecture *pretrained_architecture_find(const char *name)
{
    for (int i = 0; i < ARCHITECTURES; i++)
        if (strcmp(architectures[i].name, name) == 0)
            return &architectures[i];
    return NULL;
}

const struct pretrained_architecture *pretrained_architecture_of_type(const char *model_type)
{
    for (int i = 0; i < ARCHITECTURES; i++)
        if (strcmp(architectures[i].model_type, model_type) == 0)
            return &architectures[i];
    return NULL;
}

const struct pretrained_key *pretrained_key_find(const struct pretrained_architecture *architecture,
                                                 const char *name)
{
    static const struct pretrained_key ignored = IGNORED("");
    for (const struct pretrained_key *key = architecture->keys; key->name != NULL; key++)
        if (strcmp(key->name, name) == 0)
            return key;
    for (const char *const *key = ignored_keys; *key != NULL; key++)
        if (strcmp(*key, name) == 0)
            return &ignored;
    return NULL;
}
