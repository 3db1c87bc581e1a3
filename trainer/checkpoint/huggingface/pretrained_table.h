// SPDX-License-Identifier: Apache-2.0
/* The model architectures of Hugging Face's transformers library that Cuboid can express, as tables that are
 * read in both directions:
 *
 *   keys          config.json                     the recipe's section `model`
 *                 "rms_norm_eps": 1e-6            norm_epsilon: 1e-06
 *   implied       (every LlamaForCausalLM)        normalization: RMSNorm
 *   rows          transformer.h.3.attn.c_attn.weight [H, 3 H]     layers.3.attention.{q,k,v}.weight [H, H]
 *
 * A new architecture is a new table. A value without an equivalent is refused, never dropped: a key is either
 * mapped, fixed to the one value that Cuboid computes, or listed as one that does not change the function. */
#pragma once

#include <stdbool.h>

/* How the parts (parameters of Cuboid, [outputs, inputs]) make up one tensor of the other side. */
enum pretrained_layout {
    PRETRAINED_ROWS,       // concatenated: [sum of outputs, inputs]
    PRETRAINED_TRANSPOSED, // the same, transposed: Conv1D of GPT-2
    PRETRAINED_HEADS       // concatenated head by head, [heads, parts, head size, inputs]: BLOOM
};

enum { PRETRAINED_MAX_PARTS = 3 };

/* One tensor. In the names, * stands for the number of the layer. The row is used if the model has all
 * parts, and none is tied. */
struct pretrained_row {
    const char *name;
    const char *parts[PRETRAINED_MAX_PARTS];
    enum pretrained_layout layout;
};

enum pretrained_kind {
    PRETRAINED_COUNT, // an integer
    PRETRAINED_REAL,
    PRETRAINED_BOOL,
    PRETRAINED_ACTIVATION,
    PRETRAINED_ROPE,          // rope_theta with rope_scaling, or rope_parameters (transformers 5)
    PRETRAINED_LAYER_TYPES,   // of each layer: full attention, or with the switch a sliding window
    PRETRAINED_WINDOW,        // tokens of the sliding window
    PRETRAINED_WINDOW_SWITCH, // Qwen: whether there is one, with max_window_layers and layer_types
    PRETRAINED_FIXED,         // only the value `absent`
    PRETRAINED_IGNORED        // does not change the function
};

/* A key of config.json. Several keys may have one model key; their values must then agree. */
struct pretrained_key {
    const char *name;
    enum pretrained_kind kind;
    const char *model_key; // without "model."; NULL: none
    const char *absent;    // value of a missing key, or of null; "": that of the recipe; NULL: required
};

struct pretrained_pair {
    const char *from, *to;
};

/* Arrays end with {0}. */
struct pretrained_architecture {
    const char *name;       // "LlamaForCausalLM"
    const char *model_type; // "llama"
    const char *prefix;     // of the names of tensors, omitted in some files
    const struct pretrained_key *keys;
    const struct pretrained_pair *activations; // from their names
    const struct pretrained_pair *implied;     // from a model key to its value in every such model
    const struct pretrained_row *rows;
    const char *const *ignored_tensors; // ends of the names of constants, which old files have
    bool needs_whole_heads;             // transformers refuses a hidden_size that its heads do not divide
};

/* Architecture `index`; NULL past the last. On export the first one that expresses a model is used. */
const struct pretrained_architecture *pretrained_architecture(int index);
/* By name, or by model_type; NULL: unknown. */
const struct pretrained_architecture *pretrained_architecture_find(const char *name);
const struct pretrained_architecture *pretrained_architecture_of_type(const char *model_type);

/* The row of a key of config.json, also of those that all architectures ignore; NULL: unknown. */
const struct pretrained_key *pretrained_key_find(const struct pretrained_architecture *architecture,
                                                 const char *name);
