// SPDX-License-Identifier: Apache-2.0
/* Interface of a tokenizer type: one const row. Only tokenizer.c calls through it, after its checks; other
 * code uses tokenizer.h. */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

struct vocabulary {
    int32_t size;
    int32_t end_of_document;
};

struct tokenizer_kind {
    const char *name;
    const char *other_name; // alias
    bool needs_files;
    /* Creates the `model` passed to the other functions; leaves nothing allocated on failure. */
    enum status (*create)(const struct tokenizer_config *config, void **model, struct vocabulary *vocabulary);
    void (*destroy)(void *model);
    enum status (*encoder_create)(const void *model, void **state);
    void (*encoder_destroy)(void *state);
    enum status (*encode)(const void *model, void *state, const char *bytes, int64_t length,
                          struct tokens *out);
    int64_t (*cut)(const char *bytes, int64_t length);
    void (*decode)(const void *model, int32_t id, struct text *out); // id is inside the vocabulary
};
