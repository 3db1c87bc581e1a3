// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/json_line.h"

#include "base/text.h"

#include <string.h>

enum { MAX_DEPTH = 512 };

struct scanner {
    const char *at, *end;
    const char *problem, *wrong; // NULL: none yet
};

static bool refuse(struct scanner *s, const char *at, const char *problem)
{
    if (s->problem == NULL) {
        s->problem = problem;
        s->wrong = at;
    }
    return false;
}

static void skip_space(struct scanner *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

/* The next byte, or 0 at the end; JSON has no zero bytes. */
static char peek(const struct scanner *s)
{
    return s->at < s->end ? *s->at : 0;
}

/* utf8_length() at `at` for bytes without a terminator: a sequence truncated by the end is invalid. */
static int sequence_length(const char *at, const char *end)
{
    char bytes[5] = {0};
    memcpy(bytes, at, end - at < 4 ? (size_t)(end - at) : 4);
    return utf8_length(bytes);
}

/* The value of four hexadecimal digits, or -1. */
static int hex4(const char *at, const char *end)
{
    static const char digits[] = "0123456789abcdef";
    int value = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i] >= 'A' && at[i] <= 'F' ? (char)(at[i] - 'A' + 'a') : at[i];
        const char *digit = c != 0 ? strchr(digits, c) : NULL;
        if (digit == NULL)
            return -1;
        value = value * 16 + (int)(digit - digits);
    }
    return value;
}

enum { ESCAPE_INVALID = -1, ESCAPE_LONE = -2 };

/* Code point of the escape sequence at `at` (the backslash), and its length. ESCAPE_LONE: half of a surrogate
 * pair. */
static int escape(const char *at, const char *end, int *length)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (end - at < 2 || at[1] == 0)
        return ESCAPE_INVALID;
    const char *name = strchr(names, at[1]);
    *length = 2;
    if (name != NULL)
        return values[name - names];
    int first = at[1] == 'u' ? hex4(at + 2, end) : -1;
    *length = 6;
    if (first < 0xD800 || first > 0xDFFF)
        return first;
    int second = end - at >= 12 && at[6] == '\\' && at[7] == 'u' ? hex4(at + 8, end) : -1;
    if (first > 0xDBFF || second < 0xDC00 || second > 0xDFFF)
        return ESCAPE_LONE;
    *length = 12;
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
}

/* Scans a string, from its opening to after its closing quote. `is_text`: it is decoded, so it must be text.
 * Others may have lone surrogates, which Python's json writes. */
static bool scan_string_as(struct scanner *s, bool is_text, const char **begin, const char **end)
{
    if (peek(s) != '"')
        return refuse(s, s->at, "expected a string in double quotes");
    const char *quote = s->at++;
    *begin = s->at;
    while (s->at < s->end && *s->at != '"') {
        unsigned char c = (unsigned char)*s->at;
        int length = 1;
        const int point = c == '\\' ? escape(s->at, s->end, &length) : c;
        if (point == ESCAPE_INVALID)
            return refuse(s, s->at, "invalid escape sequence");
        if (point == ESCAPE_LONE && is_text)
            return refuse(s, s->at, "lone surrogate, half of a character");
        if (c < 0x20)
            return refuse(s, s->at, "unescaped control character in a string");
        if (c >= 0x80 && (length = sequence_length(s->at, s->end)) == 0)
            return refuse(s, s->at, "invalid UTF-8");
        s->at += length;
    }
    *end = s->at;
    if (s->at == s->end)
        return refuse(s, quote, "unterminated string");
    s->at++;
    return true;
}

static bool scan_string(struct scanner *s, const char **begin, const char **end)
{
    return scan_string_as(s, false, begin, end);
}

static bool digits(struct scanner *s)
{
    const char *before = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > before || refuse(s, s->at, "expected a digit");
}

static bool scan_number(struct scanner *s)
{
    s->at += peek(s) == '-' ? 1 : 0;
    if (peek(s) == '0')
        s->at++;
    else if (!digits(s))
        return false;
    if (peek(s) == '.') {
        s->at++;
        if (!digits(s))
            return false;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        s->at += peek(s) == '+' || peek(s) == '-' ? 1 : 0;
        return digits(s);
    }
    return true;
}

static bool scan_word(struct scanner *s, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, word, length) != 0)
        return refuse(s, s->at, "expected a value");
    s->at += length;
    return true;
}

/* Scans a string, a number or a literal; also NaN and Infinity, which Python's json writes. */
static bool scan_scalar(struct scanner *s)
{
    const char *begin, *end;
    switch (peek(s)) {
    case '"':
        return scan_string(s, &begin, &end);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    case 'N':
        return scan_word(s, "NaN");
    case 'I':
        return scan_word(s, "Infinity");
    default:
        if (s->end - s->at > 1 && s->at[0] == '-' && s->at[1] == 'I')
            return scan_word(s, "-Infinity");
        if (peek(s) != '-' && (peek(s) < '0' || peek(s) > '9'))
            return refuse(s, s->at,
                          s->at < s->end ? "expected a value" : "the line ends where a value is expected");
        return scan_number(s);
    }
}

/* Scans the name of a member and its colon. */
static bool scan_name(struct scanner *s, const char **begin, const char **end)
{
    skip_space(s);
    if (!scan_string(s, begin, end))
        return false;
    skip_space(s);
    if (peek(s) != ':')
        return refuse(s, s->at, "expected ':'");
    s->at++;
    skip_space(s);
    return true;
}

/* After a value inside closers[0..*depth): scans commas and closing brackets up to the next value. Returns
 * false on error. */
static bool scan_after(struct scanner *s, char *closers, int *depth)
{
    const char *begin, *end;
    while (*depth > 0) {
        skip_space(s);
        char c = peek(s);
        if (c == ',') {
            s->at++;
            skip_space(s);
            return closers[*depth - 1] == ']' || scan_name(s, &begin, &end);
        }
        if (c != closers[*depth - 1])
            return refuse(s, s->at,
                          closers[*depth - 1] == ']' ? "expected ',' or ']'" : "expected ',' or '}'");
        s->at++;
        --*depth;
    }
    return true;
}

/* Scans a value of any kind, without recursion, so that no line can overflow the stack. */
static bool scan_value(struct scanner *s)
{
    char closers[MAX_DEPTH];
    const char *begin, *end;
    int depth = 0;
    do {
        skip_space(s);
        char c = peek(s);
        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH)
                return refuse(s, s->at, "nested deeper than 512 levels");
            closers[depth++] = c == '{' ? '}' : ']';
            s->at++;
            skip_space(s);
            if (peek(s) != closers[depth - 1]) {
                if (c == '{' && !scan_name(s, &begin, &end))
                    return false;
                continue; // its first value
            }
        } else if (!scan_scalar(s))
            return false;
        if (!scan_after(s, closers, &depth))
            return false;
    } while (depth > 0);
    return true;
}

/* Whether the name in [begin, end) is `key`. */
static bool is_key(const char *begin, const char *end, const char *key)
{
    struct json_line name = {.bytes = begin, .length = end - begin, .begin = 0, .end = end - begin};
    char chunk[64];
    int64_t at = 0, got;
    while ((got = json_line_decode(&name, &at, chunk, sizeof chunk)) > 0) {
        if (strlen(key) < (size_t)got || memcmp(key, chunk, (size_t)got) != 0)
            return false;
        key += got;
    }
    return *key == 0;
}

/* Scans the members of the object, after its opening bracket. */
static bool scan_members(struct scanner *s, const char *key, struct json_line *out)
{
    skip_space(s);
    if (peek(s) == '}') {
        s->at++;
        return true;
    }
    for (;;) {
        const char *begin, *end;
        if (!scan_name(s, &begin, &end))
            return false;
        bool wanted = is_key(begin, end, key), string = peek(s) == '"';
        if (wanted && string) {
            if (!scan_string_as(s, true, &begin, &end))
                return false;
            out->begin = begin - out->bytes;
            out->end = end - out->bytes;
        } else if (!scan_value(s))
            return false;
        if (wanted)
            out->found = string ? LINE_STRING : LINE_NO_STRING;
        skip_space(s);
        char c = peek(s);
        if (c != ',' && c != '}')
            return refuse(s, s->at, "expected ',' or '}'");
        s->at++;
        if (c == '}')
            return true;
    }
}

bool json_line_parse(const char *bytes, int64_t length, const char *key, struct json_line *out)
{
    struct scanner s = {.at = bytes, .end = bytes + length};
    *out = (struct json_line){.bytes = bytes, .length = length, .found = LINE_NO_OBJECT};
    skip_space(&s);
    bool good;
    if (peek(&s) == '{') {
        s.at++;
        out->found = LINE_NO_KEY;
        good = scan_members(&s, key, out);
    } else {
        good = scan_value(&s);
    }
    skip_space(&s);
    if (good && s.at < s.end)
        good = refuse(&s, s.at, "expected the end of the line");
    out->at = good ? 0 : s.wrong - bytes;
    out->problem = s.problem;
    return good;
}

static int put_utf8(int point, char *out)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    int length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, point >>= 6)
        out[i] = (char)(0x80 | (point & 0x3F));
    out[0] = (char)((0xF00 >> length & 0xFF) | point);
    return length;
}

int64_t json_line_decode(const struct json_line *line, int64_t *at, char *out, int64_t capacity)
{
    int64_t count = 0;
    while (*at < line->end && count + 4 <= capacity) {
        const char *from = line->bytes + *at;
        if (*from == '\\') {
            int length = 0;
            const int point = escape(from, line->bytes + line->end, &length);
            count += put_utf8(point < 0 ? 0xFFFD : point, out + count); // in a name
            *at += length;
            continue;
        }
        // Copies all bytes up to the next escape sequence.
        int64_t most = line->end - *at < capacity - count ? line->end - *at : capacity - count;
        const char *next = memchr(from, '\\', (size_t)most);
        int64_t plain = next != NULL ? next - from : most;
        memcpy(out + count, from, (size_t)plain);
        count += plain;
        *at += plain;
    }
    return count;
}
