// SPDX-License-Identifier: Apache-2.0
/* Texts that end a generated text, and are not part of it. They may lie across tokens, so what could be the
 * beginning of one is held back:
 *
 *     stop "END"    "one E" + "ND two"      prints "one ", then stops */
#pragma once

#include "base/text.h"

struct stop_texts {
    const char *const *list; // none is empty
    int count;
};

/* Returns the position of the first stop text that ends after the first `seen` bytes; -1: there is none. */
int64_t stop_text_find(const struct stop_texts *stops, const struct text *text, size_t seen);

/* Returns the number of bytes at the end that begin a stop text. */
size_t stop_text_held(const struct stop_texts *stops, const struct text *text);
