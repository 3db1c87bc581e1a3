// SPDX-License-Identifier: Apache-2.0
/* Character class of the first character of a byte string. */
#pragma once

#include <stdint.h>

enum character {
    CHARACTER_OTHER,  // and each byte that is not part of valid UTF-8
    CHARACTER_LETTER, // \p{L}
    CHARACTER_NUMBER, // \p{N}
    CHARACTER_SPACE,  // \s: Unicode's White_Space
};

/* Returns the class of the first character of bytes[0..length), length at least 1, and its length in
 * bytes. */
enum character character_at(const char *bytes, int64_t length, int64_t *used);
