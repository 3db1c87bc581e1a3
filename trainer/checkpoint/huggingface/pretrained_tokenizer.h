// SPDX-License-Identifier: Apache-2.0
/* The tokenizer in the folder of a model, and in that of a checkpoint. */
#pragma once

#include "trainer/checkpoint/huggingface/model_files.h"
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

enum { PRETRAINED_TOKENIZER_FILES = 2 };
struct pretrained_tokenizer_file {
    const char *key; // of the recipe: "tokenizer.vocab_file"
    enum model_file file;
    const char *path; // in the recipe; of a tokenizer.json perhaps its folder
};

/* Lists the files that the recipe's tokenizer reads; returns their number, 0 if there are none. */
int pretrained_tokenizer_files(const struct recipe *recipe,
                               struct pretrained_tokenizer_file out[PRETRAINED_TOKENIZER_FILES]);

/* Appends overrides of the recipe's keys by the paths of these files in a checkpoint's folder:
 * "tokenizer.vocab_file=CKPT/vocab.json". The paths of the recipe no longer hold after the folder is moved,
 * or from another current folder. Returns their number; 0 if not all files are there. The caller frees the
 * texts. */
int pretrained_tokenizer_in(const char *folder, const struct recipe *recipe,
                            struct text out[PRETRAINED_TOKENIZER_FILES]);

/* Reads the file of a tokenizer that the user named, or of a folder, as `file`; if it has this name, also
 * the files next to it that transformers reads. As model_files_read(). */
MUST_USE enum status pretrained_tokenizer_read(const char *path, enum model_file file,
                                               struct problems *warnings, struct model_files *out);
