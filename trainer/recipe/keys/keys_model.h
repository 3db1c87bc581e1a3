// SPDX-License-Identifier: Apache-2.0
/* The keys of the top and of the section `model`, for keys.h only. */

#define NOT_ROTARY r->model.position_embedding != ROPE, "model.position_embedding_type", "only rope uses it"

#define SCALED_ROPE     (r->model.position_embedding == ROPE && r->model.use_rope_scaling)
#define NOT_SCALED_ROPE !SCALED_ROPE, "model.use_rope_scaling", "set it to true"
#define NOT_LLAMA3 \
    SCALED_ROPE && r->model.rope_scaling_type != ROPE_LLAMA3, "model.rope_scaling_type", "only llama3 uses it"
#define NOT_YARN \
    SCALED_ROPE && r->model.rope_scaling_type != ROPE_YARN, "model.rope_scaling_type", "only yarn uses it"

SECTION(, SECTION_RUN, "General keys.")
ROW("name", TEXT, name, NULL, "Name of the run; its folder is `runs/NAME`.",
    .derived = "the recipe's file name")
ROW("base", BASE, name, "none",
    "Recipe to merge this one over, key by key: keys given here replace those of the base. Relative "
    "to this file.",
    .optional = true)
ROW("seed", COUNT, seed, "1234", "Seed of weights, dropout and data order.", BETWEEN(0, 9e15),
    .mathematics = true)
ROW("deterministic", BOOL, deterministic, "true",
    "Bit-identical reruns: no atomics, no choices by timing, sums across ranks in rank order. `false` "
    "lets NCCL reduce in the order of its topology; no effect on a CPU.")

SECTION(model, SECTION_MATHEMATICS, "Model architecture. Hugging Face names are accepted too.")
ROW("model.num_layers", COUNT, model.num_layers, NULL, "Number of transformer layers.", BETWEEN(1, 1e5),
    .aliases = "num_hidden_layers n_layer n_layers", .example = "12")
ROW("model.hidden_size", COUNT, model.hidden_size, NULL, "H, the hidden size.", BETWEEN(1, 1e7),
    .aliases = "n_embd", .example = "768")
ROW("model.num_attention_heads", COUNT, model.num_attention_heads, NULL,
    "A, the number of attention (query) heads.", BETWEEN(1, 1e5), .aliases = "n_head n_heads",
    .example = "12")
ROW("model.num_query_groups", COUNT, model.num_query_groups, NULL,
    "G, the number of key/value heads of grouped-query attention. If fewer than tensor_parallel_size, "
    "they are replicated.",
    BETWEEN(1, 1e5), .derived = "num_attention_heads", .aliases = "num_key_value_heads")
ROW("model.ffn_hidden_size", COUNT, model.ffn_hidden_size, NULL, "F, the hidden size of the MLP.",
    BETWEEN(1, 1e8),
    .derived = "4 hidden_size; with a gate 8/3 hidden_size, rounded down to a multiple of 64",
    .aliases = "intermediate_size n_inner")
ROW("model.kv_channels", COUNT, model.kv_channels, NULL, "D, the head size. Must be even with rope.",
    BETWEEN(1, 1e5), .derived = "hidden_size / num_attention_heads", .aliases = "head_dim")
ROW("model.seq_length", COUNT, model.seq_length, NULL, "S, the sequence length in tokens.", BETWEEN(1, 1e8),
    .aliases = "max_position_embeddings n_positions n_ctx", .example = "1024")
ROW("model.vocab_size", COUNT, model.vocab_size, NULL,
    "V, the vocabulary size. May exceed the tokenizer's: the other ids are never targets.", BETWEEN(1, 1e9),
    .derived = "the tokenizer's")
ROW("model.make_vocab_size_divisible_by", COUNT, model.make_vocab_size_divisible_by, "128",
    "Pads the embedding's rows in memory to a multiple of this times tensor_parallel_size, which "
    "aligns rows of logits for tensor cores: 8 is enough; 1 saves memory on a CPU. Padding never "
    "enters the softmax, a norm or a checkpoint.",
    BETWEEN(1, 1e6), .neutral = true)
ROW("model.position_embedding_type", CHOICE, model.position_embedding, "learned_absolute",
    "Position embedding type. `learned_absolute`: a table of seq_length rows; `rope`: rotary; `alibi`: "
    "a linear bias of the scores, with a slope for each head (BLOOM).",
    .choices = CHOICES(NAMED("learned_absolute", LEARNED_ABSOLUTE), NAMED("rope", ROPE),
                       NAMED("alibi", ALIBI)))
ROW("model.rotary_base", REAL, model.rotary_base, "10000", "Base of the rotary position embeddings (rope).",
    BETWEEN(1, INFINITY), .below = true, .aliases = "rope_theta", .example = "10000")
UNUSED_IF(NOT_ROTARY)
ROW("model.rotary_percent", REAL, model.rotary_percent, "1",
    "Share of the channels of each head that rope rotates, from the first; times kv_channels, rounded "
    "down, it must be even.",
    BETWEEN(0, 1), .above = true, .aliases = "partial_rotary_factor rotary_pct", .example = "0.5")
UNUSED_IF(NOT_ROTARY)
ROW("model.rotary_interleaved", BOOL, model.rotary_interleaved, "false",
    "rope rotates pairs of neighbouring channels (2i, 2i + 1), as in GPT-J, instead of the pairs of "
    "both halves (i, i + D/2).")
UNUSED_IF(NOT_ROTARY)
ROW("model.use_rope_scaling", BOOL, model.use_rope_scaling, "false",
    "Scale the frequencies of rope for a longer context, as Llama 3.1 does.")
UNUSED_IF(NOT_ROTARY)
ROW("model.rope_scaling_type", CHOICE, model.rope_scaling_type, "llama3",
    "How use_rope_scaling scales the frequencies. `llama3`: divides low frequencies by the factor; "
    "`linear`: all of them (position interpolation); `ntk`: raises the base; `yarn`: divides "
    "frequencies with few rotations in the original context, and scales attention by (0.1 ln(factor) + "
    "1)^2.",
    .choices = CHOICES(NAMED("llama3", ROPE_LLAMA3), NAMED("linear", ROPE_LINEAR), NAMED("ntk", ROPE_NTK),
                       NAMED("yarn", ROPE_YARN)))
UNUSED_IF(NOT_SCALED_ROPE)
ROW("model.rope_scaling_factor", REAL, model.rope_scaling_factor, "8",
    "Factor of the context length with use_rope_scaling.", BETWEEN(1, INFINITY), .below = true,
    .example = "8")
UNUSED_IF(NOT_SCALED_ROPE)
ROW("model.rope_low_freq_factor", REAL, model.rope_low_freq_factor, "1",
    "llama3: wavelengths over the original context length divided by this are divided by the factor.",
    POSITIVE, .aliases = "low_freq_factor", .example = "1")
UNUSED_IF(NOT_SCALED_ROPE)
UNUSED_IF(NOT_LLAMA3)
ROW("model.rope_high_freq_factor", REAL, model.rope_high_freq_factor, "4",
    "llama3: wavelengths under the original context length divided by this are kept.", POSITIVE,
    .aliases = "high_freq_factor", .example = "4")
UNUSED_IF(NOT_SCALED_ROPE)
UNUSED_IF(NOT_LLAMA3)
ROW("model.rope_beta_fast", REAL, model.rope_beta_fast, "32",
    "yarn: frequencies with more rotations than this in the original context are kept.", POSITIVE,
    .aliases = "beta_fast", .example = "32")
UNUSED_IF(NOT_SCALED_ROPE)
UNUSED_IF(NOT_YARN)
ROW("model.rope_beta_slow", REAL, model.rope_beta_slow, "1",
    "yarn: frequencies with fewer rotations than this in the original context are divided by the "
    "factor.",
    POSITIVE, .aliases = "beta_slow", .example = "1")
UNUSED_IF(NOT_SCALED_ROPE)
UNUSED_IF(NOT_YARN)
ROW("model.rope_original_max_position_embeddings", COUNT, model.rope_original_max_position_embeddings, "8192",
    "llama3 and yarn: the context length of the original model.", BETWEEN(1, 1e8),
    .aliases = "original_max_position_embeddings")
UNUSED_IF(NOT_SCALED_ROPE)
ROW("model.block_type", CHOICE, model.block_type, "sequential",
    "Branches of a layer. `sequential`: attention, then the MLP; `parallel`: x + attention(norm(x)) + "
    "mlp(norm(x)), with one norm (GPT-J, MegaScale); `parallel_two_norms`: a norm for each (GPT-NeoX). "
    "Parallel branches need one tensor-parallel reduction forward, two with hidden_dropout; and one "
    "backward, two with two norms.",
    .choices = CHOICES(NAMED("sequential", BLOCK_SEQUENTIAL), NAMED("parallel", BLOCK_PARALLEL),
                       NAMED("parallel_two_norms", BLOCK_PARALLEL_TWO_NORMS),
                       ALIAS("false", BLOCK_SEQUENTIAL), ALIAS("true", BLOCK_PARALLEL_TWO_NORMS)),
    .aliases = "use_parallel_residual")
ROW("model.window_size", COUNT, model.window_size, "0",
    "Sliding window: each token attends to this many tokens, the last of which is itself; Megatron-LM "
    "does not count that one, and has (window_size - 1, 0). 0: none, attend to all tokens so far.",
    BETWEEN(0, 1e8), .aliases = "sliding_window")
ROW("model.window_attn_skip_freq", LAYERS, model.window_attn_skip_freq, "[]",
    "Layers with the sliding window. N: all but every N-th, which has full attention; or a list with 1 "
    "(window) or 0 (full attention) for each layer. []: all layers.",
    BETWEEN(0, 1e5), .single = true)
UNUSED_IF(r->model.window_size == 0, "model.window_size", "no layer has a window")
ROW("model.attn_logit_softcapping", REAL, model.attn_logit_softcapping, "0",
    "Soft-capping of the attention scores (Gemma 2): x becomes cap tanh(x / cap), before the mask and "
    "the softmax. 0: none.",
    BETWEEN(0, 1e6), .example = "50")
ROW("model.final_logit_softcapping", REAL, model.final_logit_softcapping, "0",
    "Soft-capping of the logits, before the loss and before sampling. 0: none.", BETWEEN(0, 1e6),
    .example = "30")
ROW("model.normalization", CHOICE, model.normalization, "LayerNorm",
    "Normalization before attention, before the MLP and after the last layer.",
    .choices = CHOICES(NAMED("LayerNorm", LAYER_NORM), NAMED("RMSNorm", RMS_NORM)))
ROW("model.norm_epsilon", REAL, model.norm_epsilon, "1e-5",
    "Epsilon added to the variance (LayerNorm) or to the mean square (RMSNorm).", POSITIVE,
    .aliases = "layernorm_epsilon layer_norm_epsilon rms_norm_eps", .example = "1e-5")
ROW("model.activation", CHOICE, model.activation, "gelu",
    "Activation function of the MLP. `gelu`: exact, with erf; `gelu_tanh`: GPT-2's tanh approximation "
    "(Hugging Face: gelu_new); `squared_relu`: max(x, 0)^2 (Hugging Face: relu2). With a gate, of a "
    "second matrix: `swiglu`: silu(gate) x up (Hugging Face: silu); `geglu`: gelu(gate) x up; "
    "`geglu_tanh`: the same with the tanh approximation (Gemma).",
    .choices = CHOICES(NAMED("gelu", ACTIVATION_GELU), NAMED("gelu_tanh", ACTIVATION_GELU_TANH),
                       NAMED("squared_relu", ACTIVATION_SQUARED_RELU), NAMED("swiglu", ACTIVATION_SWIGLU),
                       NAMED("geglu", ACTIVATION_GEGLU), NAMED("geglu_tanh", ACTIVATION_GEGLU_TANH),
                       ALIAS("gelu_new", ACTIVATION_GELU_TANH),
                       ALIAS("gelu_pytorch_tanh", ACTIVATION_GELU_TANH),
                       ALIAS("relu2", ACTIVATION_SQUARED_RELU),
                       ALIAS("squared-relu", ACTIVATION_SQUARED_RELU), ALIAS("silu", ACTIVATION_SWIGLU)),
    .aliases = "activation_function hidden_act")
ROW("model.add_bias_linear", BOOL, model.add_bias_linear, "true",
    "Biases in the linear layers. The output head never has one.")
ROW("model.add_qkv_bias", BOOL, model.add_qkv_bias, "false",
    "Biases of q, k and v, also without add_bias_linear (Qwen2).")
UNUSED_IF(r->model.add_bias_linear, "model.add_bias_linear", "true adds all biases")
ROW("model.qk_layernorm", BOOL, model.qk_layernorm, "false",
    "Normalize each head of q and of k, before rope (Qwen3), with the normalization of the model and a "
    "weight that all heads share.")
ROW("model.embed_layernorm", BOOL, model.embed_layernorm, "false",
    "Normalize the word embeddings, before positions are added (BLOOM), with the normalization of the "
    "model.")
ROW("model.tie_word_embeddings", BOOL, model.tie_word_embeddings, "true",
    "Tie the output head to the word embedding.")
ROW("model.hidden_dropout", REAL, model.hidden_dropout, "0",
    "Dropout probability after the embedding, attention and MLP.", SHARE, .aliases = "resid_pdrop")
ROW("model.attention_dropout", REAL, model.attention_dropout, "0",
    "Dropout probability of the attention weights.", SHARE, .aliases = "attn_pdrop")
ROW("model.attention_backend", CHOICE, kernels.attention, "auto",
    "Attention kernels. `own`: Cuboid's; `cudnn`: cuDNN's (`cluster.device: cuda`, bf16 or fp16, head "
    "size up to 128 in multiples of 8, no dropout, one document per sequence); `auto`: with "
    "`deterministic: false` the faster of the two, timed once per shape, else `own`.",
    .choices = CHOICES(NAMED("auto", ATTENTION_AUTO), NAMED("own", ATTENTION_OWN),
                       NAMED("cudnn", ATTENTION_CUDNN), ALIAS("flash", ATTENTION_OWN),
                       ALIAS("fused", ATTENTION_CUDNN)),
    .neutral = true)
ROW("model.init_method_std", REAL, model.init_method_std, "0.02",
    "Standard deviation of the initial weights. The last matrix of each residual branch uses this "
    "divided by sqrt(2 num_layers).",
    POSITIVE, .aliases = "initializer_range", .example = "0.02", .neutral = true)

#undef NOT_ROTARY
#undef SCALED_ROPE
#undef NOT_SCALED_ROPE
#undef NOT_LLAMA3
#undef NOT_YARN
