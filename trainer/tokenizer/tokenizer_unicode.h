// SPDX-License-Identifier: Apache-2.0
/* What kind of character stands at the beginning of some bytes. */
#pragma once

#include <stdint.h>

enum character {
    CHARACTER_OTHER,  // and every byte that is not part of UTF-8, each alone
    CHARACTER_LETTER, // \p{L}
    CHARACTER_NUMBER, // \p{N}
    CHARACTER_SPACE,  // \s: Unicode's White_Space
};

/* The kind of the first character of bytes[0..length), length at least 1, and how many bytes it takes. */
enum character character_at(const char *bytes, int64_t length, int64_t *used);
