// SPDX-License-Identifier: Apache-2.0
/* Character class of the first character of a byte string. */
#pragma once

#include <stdbool.h>
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

/* Whether the first character of bytes[0..length) is a word character (\w: alphabetic, mark, digit, connector
 * punctuation, joiner). */
bool character_is_word(const char *bytes, int64_t length);

/* Length of the longest prefix of bytes[0..length) that is valid UTF-8. */
int64_t utf8_prefix(const char *bytes, int64_t length);
