// SPDX-License-Identifier: Apache-2.0
/* A checkpoint of Cuboid as a folder that AutoModelForCausalLM.from_pretrained of Hugging Face's
 * transformers library loads: config.json, model.safetensors (or several files and their index), and the
 * files of the tokenizer. Memory: the largest tensor in its type there, and bands of the checkpoint. */
#pragma once

#include "base/text.h"
#include "trainer/checkpoint/huggingface/pretrained_ids.h"
#include "trainer/checkpoint/huggingface/pretrained_table.h"

struct pretrained_export_options {
    const char *checkpoint;          // folder of the checkpoint itself
    const struct recipe *recipe;     // of the checkpoint
    const struct model_files *files; // to be written, without config.json
    const struct pretrained_ids *ids;
    const struct pretrained_architecture *imported_as; // preferred; NULL: none
    int64_t context;                                   // of the imported model; 0: unknown
    const char *out;                                   // must not exist
    const char *dtype;                                 // "fp32", "bf16", "fp16"; NULL: that of the checkpoint
    const char *architecture;                          // NULL: the first one that expresses the model
    int64_t max_file_bytes; // of the tensors in a file; a larger tensor has its own
};

struct pretrained_export_result {
    const struct pretrained_architecture *architecture;
    int tensors, files;
    int64_t bytes;     // of the tensors
    const char *dtype; // "BF16"
    bool has_tokenizer;
};

/* BAD_RECIPE names the first key of the model that no architecture expresses; BAD_CHECKPOINT for a damaged
 * checkpoint, or a value that overflows fp16; BAD_USAGE if `out` exists. On failure nothing remains under
 * that name. */
MUST_USE enum status pretrained_export(const struct pretrained_export_options *options,
                                       struct pretrained_export_result *result);
