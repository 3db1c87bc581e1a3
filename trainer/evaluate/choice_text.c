// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/choice_text.h"

#include "base/memory.h"
#include "trainer/tokenizer/tokenizer_unicode.h"

#include <string.h>
#include <utf8proc.h>

/* str.isspace() of one character: White_Space, and four separators of ASCII. */
static bool is_space(const char *at, int64_t length, int64_t *used)
{
    const bool separator = *at >= 0x1c && *at <= 0x1f;
    return character_at(at, length, used) == CHARACTER_SPACE || separator;
}

static int64_t leading_space(const char *text)
{
    const int64_t length = (int64_t)strlen(text);
    int64_t at = 0, used;
    while (at < length && is_space(text + at, length - at, &used))
        at += used;
    return at;
}

int64_t choice_text_stripped(const char *text)
{
    const int64_t length = (int64_t)strlen(text);
    int64_t end = 0, used;
    for (int64_t at = 0; at < length; at += used)
        if (!is_space(text + at, length - at, &used))
            end = at + used;
    return end;
}

/* str.replace(): left to right, without overlaps. */
static void replace(const struct text *from, const char *old, const char *new, struct text *out)
{
    const char *at = text_chars(from), *found;
    for (; (found = strstr(at, old)) != NULL; at = found + strlen(old)) {
        text_add_bytes(out, at, (size_t)(found - at));
        text_add(out, "%s", new);
    }
    text_add(out, "%s", at);
}

/* re.sub("\\[.*?\\]", ""): from a bracket to the next closing one in the same line. */
static void remove_brackets(const struct text *from, struct text *out)
{
    const char *at = text_chars(from);
    while (*at != '\0') {
        const size_t inside = *at == '[' ? strcspn(at, "]\n") : 0;
        if (*at == '[' && at[inside] == ']') {
            at += inside + 1;
        } else {
            text_add_bytes(out, at, 1);
            at++;
        }
    }
}

void choice_text_clean(const char *text, struct text *out)
{
    AUTO(text) stripped = {0}, titled = {0}, plain = {0};
    const int64_t end = choice_text_stripped(text), begin = end > 0 ? leading_space(text) : 0;
    text_add_bytes(&stripped, text + begin, (size_t)(end - begin));
    replace(&stripped, " [title]", ". ", &titled);
    remove_brackets(&titled, &plain);
    replace(&plain, "  ", " ", out);
}

void choice_text_capitalize(const char *text, struct text *out)
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text;
    utf8proc_uint8_t encoded[4];
    utf8proc_int32_t point;
    for (bool first = true; *at != '\0'; first = false) {
        const utf8proc_ssize_t used = utf8proc_iterate(at, -1, &point);
        CHECK(used > 0); // JSON strings are valid UTF-8
        const utf8proc_int32_t mapped = first ? utf8proc_totitle(point) : utf8proc_tolower(point);
        text_add_bytes(out, (const char *)encoded, (size_t)utf8proc_encode_char(mapped, encoded));
        at += used;
    }
}

int64_t choice_text_characters(const char *text)
{
    int64_t count = 0;
    for (; *text != '\0'; text++)
        count += ((unsigned char)*text & 0xC0) != 0x80;
    return count;
}
