// SPDX-License-Identifier: Apache-2.0
/* A pretrained model of Hugging Face's transformers library as a checkpoint of Cuboid, for step 0 and
 * without optimizer state.
 *
 *   DIR/config.json, model.safetensors    OUT/manifest.json, recipe.yaml, rank-00000.safetensors
 *                                         OUT/model.yaml: sections model and tokenizer, as a base recipe
 *   DIR/tokenizer.json, ...               OUT/tokenizer.json, ... (model_files.h)
 *
 * Values are stored in bf16 if all tensors have that type, else in fp32. Memory: the largest tensor in its
 * own type, and buffers of PRETRAINED_BAND_BYTES. */
#pragma once

#include "base/text.h"
#include "trainer/checkpoint/huggingface/pretrained_table.h"
#include "trainer/files/problems.h"

enum { PRETRAINED_BAND_BYTES = 8 << 20 };

/* What becomes of an lm_head.weight that differs from the embedding, although config.json ties the two. */
enum pretrained_head {
    PRETRAINED_HEAD_REFUSED,
    PRETRAINED_HEAD_UNTIED, // imported, with tie_word_embeddings false
    PRETRAINED_HEAD_TIED    // dropped
};

struct pretrained_import_result {
    const struct pretrained_architecture *architecture;
    int tensors, files;     // in DIR
    int64_t elements;       // of all parameters
    const char *dtype;      // of the values in the checkpoint: "BF16"
    const char *tokenizer;  // "tokenizer.json"; NULL: none that Cuboid can read
    struct text model_yaml; // freed by the caller
};

/* BAD_CHECKPOINT names the file, the key or tensor, and what is supported; BAD_USAGE if `out` exists. On
 * failure nothing remains under that name. `head` other than REFUSED: BAD_USAGE for a model that is not tied;
 * a file without lm_head.weight cannot be untied. */
MUST_USE enum status pretrained_import(const char *folder, const char *out, enum pretrained_head head,
                                       struct problems *warnings, struct pretrained_import_result *result);
