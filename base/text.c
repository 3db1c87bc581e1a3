// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void text_reserve(struct text *text, size_t more)
{
    if (text->length + more + 1 <= text->capacity)
        return;
    size_t capacity = text->capacity < 64 ? 64 : text->capacity * 2;
    while (capacity < text->length + more + 1)
        capacity *= 2;
    text->chars = memory_resized(text->chars, capacity, 1, "a text");
    text->capacity = capacity;
}

void text_add_bytes(struct text *text, const char *bytes, size_t length)
{
    text_reserve(text, length);
    if (length > 0)
        memcpy(text->chars + text->length, bytes, length);
    text->length += length;
    text->chars[text->length] = 0;
}

static void text_vadd(struct text *text, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    CHECK(length >= 0);
    text_reserve(text, (size_t)length);
    vsnprintf(text->chars + text->length, (size_t)length + 1, format, again);
    va_end(again);
    text->length += (size_t)length;
}

void text_add(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_vadd(text, format, args);
    va_end(args);
}

/* Returns the length of the UTF-8 sequence at `s`, or 0 if it is invalid (RFC 3629, table 3-7 of Unicode). */
int utf8_length(const char *string)
{
    const unsigned char *s = (const unsigned char *)string;
    if (s[0] < 0x80)
        return 1;
    int length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xED && s[1] > 0x9F;
    bool too_large = s[0] == 0xF4 && s[1] > 0x8F;
    return overlong || surrogate || too_large ? 0 : length;
}

void text_add_json_bytes(struct text *text, const char *bytes, size_t length)
{
    text_add_bytes(text, "\"", 1);
    for (size_t i = 0, used = 0; i < length; i += used) {
        char c[5] = {0}; // the terminator ends a truncated sequence
        memcpy(c, bytes + i, length - i < 4 ? length - i : 4);
        const int valid = c[0] != 0 ? utf8_length(c) : 1;
        used = valid > 0 ? (size_t)valid : 1;
        if (valid == 0)
            text_add(text, "\xEF\xBF\xBD");
        else if (*c == '"' || *c == '\\')
            text_add(text, "\\%c", *c);
        else if (*c == '\n')
            text_add(text, "\\n");
        else if ((unsigned char)*c < 0x20 || *c == 0x7F)
            text_add(text, "\\u%04x", (unsigned)*c);
        else if (memcmp(c, "\xC2", 1) == 0 &&
                 (unsigned char)c[1] < 0xA0) // as it is, it could control a terminal
            text_add(text, "\\u%04x", (unsigned)(unsigned char)c[1]);
        else
            text_add_bytes(text, c, used);
    }
    text_add_bytes(text, "\"", 1);
}

void text_add_json(struct text *text, const char *string)
{
    text_add_json_bytes(text, string, strlen(string));
}

/* Returns the length of a printable character, 0 if there is none. Excludes two ranges of control characters,
 * and U+FFFE and U+FFFF, which XML does not allow. */
static int printable_length(const char *bytes, size_t left)
{
    unsigned char c[5] = {0}; // the terminator ends a truncated sequence
    memcpy(c, bytes, left < 4 ? left : 4);
    int length = utf8_length((const char *)c);
    bool control = c[0] < ' ' || c[0] == 0x7F || (c[0] == 0xC2 && c[1] < 0xA0);
    bool no_character = memcmp(c, "\xEF\xBF\xBE", 3) == 0 || memcmp(c, "\xEF\xBF\xBF", 3) == 0;
    return control || no_character ? 0 : length;
}

void text_add_printable(struct text *text, const char *bytes, size_t length)
{
    for (size_t at = 0; at < length;) {
        int shown = printable_length(bytes + at, length - at);
        if (shown > 0)
            text_add_bytes(text, bytes + at, (size_t)shown);
        else
            text_add(text, "\\x%02x", (unsigned)(unsigned char)bytes[at]);
        at += shown > 0 ? (size_t)shown : 1;
    }
}

void text_printable(const char *string, char *out, size_t capacity)
{
    size_t left = strlen(string), length = 0;
    while (left > 0) {
        int shown = printable_length(string, left);
        size_t need = shown > 0 ? (size_t)shown : 4;
        if (length + need >= capacity)
            break;
        if (shown > 0)
            memcpy(out + length, string, need);
        else
            snprintf(out + length, need + 1, "\\x%02x", (unsigned)(unsigned char)*string);
        length += need;
        string += shown > 0 ? shown : 1;
        left -= shown > 0 ? (size_t)shown : 1;
    }
    out[length] = 0;
}

static void print_after(FILE *to, const char *mark, const char *format, va_list args)
{
    AUTO(text) raw = {0};
    AUTO(text) line = {0};
    text_vadd(&raw, format, args);
    text_add(&line, "%s", mark);
    text_add_printable(&line, raw.chars, raw.length);
    text_add_bytes(&line, "\n", 1);
    fwrite(line.chars, 1, line.length, to);
}

void print_line(FILE *to, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_after(to, "", format, args);
    va_end(args);
}

void print_marked(const struct failure_mark *mark, const char *format, ...)
{
    char chars[FAILURE_MARK_CHARS];
    va_list args;
    va_start(args, format);
    print_after(stderr, failure_mark_text(mark, chars), format, args);
    va_end(args);
}

const char *text_chars(const struct text *text)
{
    return text->chars != NULL ? text->chars : "";
}

void text_free(struct text *text)
{
    free(text->chars);
    *text = (struct text){0};
}

char *text_copy(const char *chars)
{
    size_t bytes = strlen(chars) + 1;
    return memcpy(memory_resized(NULL, bytes, 1, "a text"), chars, bytes);
}

static const char *not_finite_text(double value)
{
    return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/* Formats integers: 30 as "30", although "3e+01" is no longer and reads back to the same value. Returns false
 * for fractions, and for values so large that the digits would be meaningless. */
static bool whole_text(double value, char out[NUMBER_CHARS])
{
    if (!(fabs(value) <= 1e18) || value != rint(value))
        return false;
    snprintf(out, NUMBER_CHARS, "%.0f", value);
    return true;
}

const char *number_text(double value, char out[NUMBER_CHARS])
{
    if (!isfinite(value)) {
        snprintf(out, NUMBER_CHARS, "%s", not_finite_text(value));
        return out;
    }
    if (whole_text(value, out))
        return out;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, NUMBER_CHARS, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return out;
}

const char *number_text_short(double value, char out[NUMBER_CHARS])
{
    number_text(value, out);
    for (int digits = 0; fabs(value) >= 1e6 && digits < 17; digits++) {
        char exponent[NUMBER_CHARS];
        double read = 0.0;
        snprintf(exponent, sizeof exponent, "%.*e", digits, value);
        char *plus = strchr(exponent, '+');
        if (!number_parse(exponent, &read) || read != value || plus == NULL)
            continue;
        size_t zeros = strspn(plus + 1, "0");
        memmove(plus, plus + 1 + zeros, strlen(plus + 1 + zeros) + 1); // 3.12e14, not 3.12e+14
        if (strlen(exponent) < strlen(out))
            snprintf(out, NUMBER_CHARS, "%s", exponent);
        break;
    }
    return out;
}

bool number_parse(const char *string, double *out)
{
    // strtod() also accepts hexadecimal numbers, which are unexpected in a recipe: 0x1p3 would be 8.
    if (*string == 0 || isspace((unsigned char)*string) || strpbrk(string, "xX") != NULL)
        return false;
    char *end = NULL;
    errno = 0;
    double value = strtod(string, &end);
    if (*end != 0 || (errno == ERANGE && !(fabs(value) < 1.0)))
        return false;
    *out = value;
    return true;
}

bool integer_parse(const char *string, int64_t *out)
{
    if (*string == 0 || isspace((unsigned char)*string))
        return false;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(string, &end, 10);
    if (*end != 0 || errno == ERANGE)
        return false;
    *out = value;
    return true;
}

const char *bytes_text(int64_t bytes, char out[NUMBER_CHARS])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (fabs(value) >= 1024.0 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024.0;
        unit++;
    }
    snprintf(out, NUMBER_CHARS, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return out;
}

const char *count_text(double count, char out[NUMBER_CHARS])
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    size_t unit = 0;
    while (fabs(count) >= 1000.0 && unit + 1 < sizeof units / sizeof *units) {
        count /= 1000.0;
        unit++;
    }
    snprintf(out, NUMBER_CHARS, unit == 0 ? "%.0f%s" : "%.1f%s", count, units[unit]);
    return out;
}

const char *seconds_text(double seconds, char out[NUMBER_CHARS])
{
    if (seconds < 60.0)
        snprintf(out, NUMBER_CHARS, seconds < 10.0 ? "%.1f s" : "%.0f s", seconds);
    else if (seconds < 3600.0)
        snprintf(out, NUMBER_CHARS, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else if (seconds < 172800.0)
        snprintf(out, NUMBER_CHARS, "%d h %02d min", (int)(seconds / 3600.0), (int)(seconds / 60.0) % 60);
    else if (seconds < 8.64e8)
        snprintf(out, NUMBER_CHARS, "%d days %02d h", (int)(seconds / 86400.0), (int)(seconds / 3600.0) % 24);
    else
        snprintf(out, NUMBER_CHARS, "%.3g days", seconds / 86400.0);
    return out;
}

enum { NAME_MAX_CHARS = 63 };

/* Edits (insert, delete, replace, swap of neighbours) from a to b, case-insensitive: the restricted
 * Damerau-Levenshtein distance. */
static int edit_distance(const char *a, const char *b)
{
    int d[NAME_MAX_CHARS + 1][NAME_MAX_CHARS + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > NAME_MAX_CHARS || m > NAME_MAX_CHARS)
        return NAME_MAX_CHARS;
    for (int i = 0; i <= n; i++)
        d[i][0] = i;
    for (int j = 0; j <= m; j++)
        d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            int best = d[i - 1][j - 1] + (same ? 0 : 1);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *nearest_name(const char *name, const char *const *names, size_t count)
{
    const size_t length = strlen(name);
    if (length > NAME_MAX_CHARS)
        return NULL;
    // The first words of a name: dgx-a100 is dgx-a100-40, although dgx-h100 differs by one letter only.
    for (size_t i = 0; i < count && length >= 3; i++)
        if (strncmp(names[i], name, length) == 0 && strchr("-_.", names[i][length]) != NULL)
            return names[i];
    // Close enough: a quarter of the letters may differ, or one, or one name contains the other
    // and is at least half of it.
    int best = (int)length / 4 + 1;
    const char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        int distance = edit_distance(name, names[i]);
        if (distance <= best && (found == NULL || distance < best)) {
            best = distance;
            found = names[i];
        }
    }
    for (size_t i = 0; i < count && found == NULL; i++)
        if (length >= 3 && (strstr(names[i], name) != NULL ||
                            (2 * strlen(names[i]) >= length && strstr(name, names[i]) != NULL)))
            found = names[i];
    return found;
}
