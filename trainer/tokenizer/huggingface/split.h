// SPDX-License-Identifier: Apache-2.0
/* A step of a pre-tokenizer: splits text at the matches of a pattern.
 *
 *     text                    "ab 12"
 *     matches of \s+               " "
 *     isolated                "ab" " " "12"          removed "ab" "12"        merged with next "ab" " 12"
 *
 * The patterns of GPT-2, Llama 3 and Qwen have code of their own (bpe_word(), llama_word()), and need no
 * regular expression engine; others are matched by PCRE2. */
#pragma once

#include "base/status.h"
#include "trainer/tokenizer/huggingface/regex.h"

#include <stdint.h>

enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_CONTIGUOUS,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT
};

enum split_pattern {
    SPLIT_GPT2_WORDS,
    SPLIT_LLAMA_WORDS, // with `digits`
    SPLIT_DIGITS,      // numbers: single characters with `digits` 1, else whole
    SPLIT_REGEX
};

struct split {
    enum split_pattern pattern;
    enum split_behavior behavior;
    bool invert; // the text between matches counts as the matches
    int digits;
    char place[96];                  // in the file, for messages: "pre_tokenizer.pretokenizers[0].pattern"
    struct pcre2_real_code_8 *regex; // SPLIT_REGEX
};

/* Compiles a pattern; `literal`: it is a plain string. BAD_DATA says why a pattern is invalid, and names no
 * place; NOT_SUPPORTED if the program was built without PCRE2. */
MUST_USE enum status split_compile(const char *pattern, size_t length, bool literal, struct split *out);
void split_free(struct split *split); // accepts {0}

/* Whether every piece is a word of a built-in pattern. */
bool split_is_words(const struct split *split);
/* Length of the first word; only for split_is_words(). length at least 1. */
int64_t split_word(const struct split *split, const char *text, int64_t length);

struct split_span {
    int64_t begin, end;
    bool matches;
};

/* The state of one traversal of text[0..length), valid UTF-8. */
struct split_search {
    const struct split *split;
    struct split_scratch *scratch;
    const char *text;
    int64_t length;
    int64_t at;              // end of the spans so far
    struct split_span match; // the next match; begin is `length` if there is none
    struct split_span held;  // merging behaviors: a span that may still grow; empty: none
};

void split_begin(const struct split *split, struct split_scratch *scratch, const char *text, int64_t length,
                 struct split_search *out);
/* Finds the next piece, which is not empty; an empty one at the end. BAD_DATA if the pattern is too expensive
 * for the text. */
MUST_USE enum status split_next(struct split_search *search, int64_t *begin, int64_t *end);
