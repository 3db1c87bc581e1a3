// SPDX-License-Identifier: Apache-2.0
/* The words of Llama 3 and of Qwen, without a regular expression engine. */
#pragma once

#include <stdint.h>

/* Length of the first word of bytes[0..length), valid UTF-8 of length at least 1: the first match of
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 *     \s*[\r\n]+|\s+(?!\S)|\s+
 * with `digits` of Llama 3: 3, of Qwen: 1. */
int64_t llama_word(const char *bytes, int64_t length, int digits);

/* Where bytes[0..length) may be cut if more text follows: before a space after a letter, or between a line
 * end and text; 0: nowhere. No word extends over such a position or depends on what follows it. */
int64_t llama_cut(const char *bytes, int64_t length);
