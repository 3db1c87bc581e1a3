// SPDX-License-Identifier: Apache-2.0
/* The tokenizer in the folder of a model, and in that of an imported checkpoint; copying its files. */
#pragma once

#include "trainer/files/output_folder.h"
#include "trainer/recipe/recipe.h"

struct pretrained_tokenizer {
    const char *type; // for the recipe, "HuggingFaceTokenizer"; a literal; NULL: none that Cuboid can read
    const char *file; // "tokenizer.json" or "tokenizer.model"; a literal
};

/* Finds the tokenizer of a model of Hugging Face: tokenizer.json, or else tokenizer.model (SentencePiece:
 * Llama 2, Mistral). One that Cuboid cannot read is a warning. BAD_CHECKPOINT if it has more ids than
 * vocab_size. */
MUST_USE enum status pretrained_tokenizer_find(const char *folder, int64_t vocab_size,
                                               struct problems *warnings, struct pretrained_tokenizer *out);

/* Appends the path of the file in the checkpoint's folder that has the base name of
 * tokenizer.tokenizer_model, which the recipe names by its path at import: that no longer holds after the
 * folder is moved, or from another current folder. Returns false if there is none. */
bool pretrained_tokenizer_in(const char *folder, const struct recipe *recipe, struct text *out);

/* Copies the two files of GPT2BPE, if they exist: *found, and names their class for AutoTokenizer. */
MUST_USE enum status pretrained_tokenizer_copy_gpt2(const struct output_folder *output,
                                                    const char *vocab_file, const char *merge_file,
                                                    bool *found);
/* Copies a tokenizer's file as `name` (tokenizer.json or tokenizer.model), if it exists: *found. If that is
 * its name, also copies the files next to it that transformers reads, which may exist without it. */
MUST_USE enum status pretrained_tokenizer_copy(const struct output_folder *output, const char *path,
                                               const char *name, bool *found);
