// SPDX-License-Identifier: Apache-2.0
/* Interface of a tokenizer type: one const row. Only tokenizer.c calls through it, after its checks; other
 * code uses tokenizer.h. */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

struct vocabulary {
    int32_t size;
    int32_t end_of_document;
    int32_t begin_of_text;        // -1: none
    struct tokens prefix, suffix; // ids around every text; owned by the model
    bool adds_space;              // before every text that is encoded
};

/* The files that a type reads. */
enum tokenizer_files { TOKENIZER_NO_FILES, TOKENIZER_VOCABULARY_AND_MERGES, TOKENIZER_MODEL };

struct tokenizer_kind {
    const char *name;
    const char *other_name; // alias
    enum tokenizer_files needs;
    const char *model_file; // with TOKENIZER_MODEL, for messages: what tokenizer_model names
    /* Creates the `model` passed to the other functions; leaves nothing allocated on failure. */
    enum status (*create)(const struct tokenizer_config *config, void **model, struct vocabulary *vocabulary);
    void (*destroy)(void *model);
    enum status (*encoder_create)(const void *model, void **state);
    void (*encoder_destroy)(void *state);
    enum status (*encode)(const void *model, void *state, const char *bytes, int64_t length,
                          struct tokens *out);
    /* Same for text that must not become special tokens; NULL: encode() makes none. */
    enum status (*encode_plain)(const void *model, void *state, const char *bytes, int64_t length,
                                struct tokens *out);
    int32_t (*special_id)(const void *model, const char *content); // -1: not a special token
    bool (*is_special)(const void *model, int32_t id);
    int64_t (*cut)(const void *model, const char *bytes, int64_t length);
    /* The ids are inside the vocabulary. begins: ids[0] is the first one of its text. */
    void (*decode)(const void *model, const int32_t *ids, int64_t count, bool begins, struct text *out);
};
