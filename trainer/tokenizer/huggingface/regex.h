// SPDX-License-Identifier: Apache-2.0
/* Regular expressions in the syntax of Oniguruma, as tokenizer.json uses it, through PCRE2 with JIT
 * compilation. \s is Unicode's White_Space, as in Oniguruma; PCRE2's also contains U+180E. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct pcre2_real_code_8;

/* Scratch memory of the matches of one thread. */
struct split_scratch;
struct split_scratch *split_scratch_create(void);
void split_scratch_destroy(struct split_scratch *scratch); // accepts NULL
/* Begins a text of this length, which limits what the matches in it may cost together. */
void split_scratch_begin(struct split_scratch *scratch, int64_t length);

/* BAD_DATA with the position in the pattern and PCRE2's reason, or for a pattern that matches nothing at all.
 * NOT_SUPPORTED names the package that the build lacked. */
MUST_USE enum status regex_compile(const char *pattern, size_t length, bool literal,
                                   struct pcre2_real_code_8 **out);
void regex_free(struct pcre2_real_code_8 *regex); // accepts NULL

/* Finds the first match at or after `from` in text[0..length), valid UTF-8; *begin is `length` if there is
 * none. BAD_DATA if the pattern is too expensive for the text that split_scratch_begin() began. */
MUST_USE enum status regex_find(const struct pcre2_real_code_8 *regex, struct split_scratch *scratch,
                                const char *text, int64_t length, int64_t from, int64_t *begin, int64_t *end);
