// SPDX-License-Identifier: Apache-2.0
/* Reads tests/fixtures/tokenizers/NAME.txt: lines of a text and its ids, "the\x20dog 12 345". */
#pragma once

#include "base/text.h"
#include "trainer/tokenizer/tokenizer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_FIXTURES SOURCE_ROOT "/tests/fixtures/tokenizers/"

struct tokenizer_case {
    const char *name;
    struct text bytes;
    struct tokens ids;
};

struct tokenizer_cases {
    struct text file;
    const char *at; // the next line
    int count;
    struct tokenizer_case now;
};

static inline struct tokenizer_cases tokenizer_cases_read(const char *name)
{
    char path[512];
    struct tokenizer_cases cases = {.now.name = name};
    snprintf(path, sizeof path, TOKENIZER_FIXTURES "%s.txt", name);
    cr_assert_eq(file_read(path, &cases.file), OK, "%s", fail_text());
    cases.at = cases.file.chars;
    return cases;
}

static inline bool tokenizer_cases_next(struct tokenizer_cases *cases)
{
    cases->now.bytes.length = 0;
    cases->now.ids.count = 0;
    if (*cases->at == 0)
        return false;
    const char *c = cases->at;
    while (*c != ' ' && *c != '\n') {
        char byte = *c;
        unsigned int value = 0;
        if (byte == '\\') {
            cr_assert_eq(sscanf(c, "\\x%2x", &value), 1);
            byte = (char)value;
        }
        text_add_bytes(&cases->now.bytes, &byte, 1);
        c += *c == '\\' ? 4 : 1;
    }
    while (*c == ' ') {
        char *end = NULL;
        int32_t id = (int32_t)strtol(c, &end, 10);
        tokens_append(&cases->now.ids, &id, 1);
        c = end;
    }
    cr_assert_eq(*c, '\n');
    cases->at = c + 1;
    cases->count++;
    return true;
}

static inline void tokenizer_cases_free(struct tokenizer_cases *cases)
{
    text_free(&cases->file);
    text_free(&cases->now.bytes);
    tokens_free(&cases->now.ids);
}

static inline void tokenizer_case_check(const struct tokenizer_case *c, const struct tokens *ids)
{
    cr_assert_eq(ids->count, c->ids.count, "%s: \"%s\": %lld ids, not %lld", c->name, c->bytes.chars,
                 (long long)ids->count, (long long)c->ids.count);
    for (int64_t i = 0; i < ids->count; i++)
        cr_assert_eq(ids->ids[i], c->ids.ids[i], "%s: \"%s\": id %lld is %d, not %d", c->name, c->bytes.chars,
                     (long long)i, ids->ids[i], c->ids.ids[i]);
}
