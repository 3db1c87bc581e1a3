// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/huggingface/llama_word.h"

#include "trainer/tokenizer/tokenizer_unicode.h"

#include <stdbool.h>
#include <string.h>

enum { CUT_REACH = 1 << 21 };

static bool is_line_end(char byte)
{
    return byte == '\n' || byte == '\r';
}

/* Length of a contraction ('s, 'RE, ...) at the beginning of the bytes, or 0. */
static int64_t contraction_length(const char *bytes, int64_t length)
{
    if (bytes[0] != '\'' || length < 2)
        return 0;
    char low = (char)(bytes[1] | 0x20);
    if (low == 's' || low == 't' || low == 'm' || low == 'd')
        return 2;
    if (length < 3)
        return 0;
    char next = (char)(bytes[2] | 0x20);
    if (((low == 'r' || low == 'v') && next == 'e') || (low == 'l' && next == 'l'))
        return 3;
    return memcmp(bytes + 1, "\xC5\xBF", 2) == 0 ? 3 : 0; // U+017F is a lower-case form of S
}

/* Length of the run of characters of this kind at the beginning of the bytes; at most `most` characters. */
static int64_t run_length(const char *bytes, int64_t length, enum character kind, int most)
{
    int64_t at = 0, used = 0;
    for (int count = 0; at < length && count < most; count++, at += used)
        if (character_at(bytes + at, length - at, &used) != kind)
            break;
    return at;
}

/* Spaces: up to the last line end of the run; without one, all but the last space before other text. */
static int64_t spaces_length(const char *bytes, int64_t length)
{
    int64_t at = 0, used = 0, last = 0, after_line = 0;
    while (at < length && character_at(bytes + at, length - at, &used) == CHARACTER_SPACE) {
        last = at;
        after_line = is_line_end(bytes[at]) ? at + 1 : after_line;
        at += used;
    }
    if (after_line > 0)
        return after_line;
    return at < length && last > 0 ? last : at;
}

int64_t llama_word(const char *bytes, int64_t length, int digits)
{
    int64_t used = 0, next_used = 0, contraction = contraction_length(bytes, length);
    if (contraction > 0)
        return contraction;
    enum character first = character_at(bytes, length, &used);
    if (first == CHARACTER_LETTER)
        return used + run_length(bytes + used, length - used, CHARACTER_LETTER, INT32_MAX);
    if (first == CHARACTER_NUMBER)
        return used + run_length(bytes + used, length - used, CHARACTER_NUMBER, digits - 1);
    enum character next = CHARACTER_SPACE;
    if (used < length)
        next = character_at(bytes + used, length - used, &next_used);
    if (next == CHARACTER_LETTER && !is_line_end(bytes[0]))
        return used + run_length(bytes + used, length - used, CHARACTER_LETTER, INT32_MAX);
    if (first == CHARACTER_SPACE && (bytes[0] != ' ' || next != CHARACTER_OTHER || used == length))
        return spaces_length(bytes, length);
    int64_t at = used + run_length(bytes + used, length - used, CHARACTER_OTHER, INT32_MAX);
    while (at < length && is_line_end(bytes[at]))
        at++;
    return at;
}

/* Whether a letter ends at bytes[at], at least 1. */
static bool follows_letter(const char *bytes, int64_t at)
{
    int64_t begin = at - 1, used = 0;
    while (begin > 0 && at - begin < 4 && ((unsigned char)bytes[begin] & 0xC0) == 0x80)
        begin--;
    return character_at(bytes + begin, at - begin, &used) == CHARACTER_LETTER && used == at - begin;
}

int64_t llama_cut(const char *bytes, int64_t length)
{
    // Text further back was searched by an earlier call.
    int64_t reach = length > CUT_REACH ? length - CUT_REACH : 0, used = 0;
    for (int64_t at = length - 1; at > reach; at--) {
        if (bytes[at] == ' ' && follows_letter(bytes, at))
            return at;
        // (The last bytes may be part of a character of spaces.)
        if (bytes[at - 1] == '\n' && length - at >= 4 &&
            character_at(bytes + at, length - at, &used) != CHARACTER_SPACE)
            return at;
    }
    return 0;
}
