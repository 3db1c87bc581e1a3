// SPDX-License-Identifier: Apache-2.0
/* Random mutants of many kinds of lines, compared with jansson: the same lines are valid JSON, and the same
 * string is found. */
#include "base/text.h"
#include "trainer/files/json_line.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

static const char *const seeds[] = {
    "{\"text\": \"hello\\n\\u00e9\\ud83d\\ude00 \\\\ \\\"x\\\" \\/\", \"n\": [1, -2.5e+3, 0.1, true, null]}",
    "{\"a\": {\"text\": \"inner\", \"b\": [[], {}, [[1]]]}, \"text\": \"outer\"}",
    "{\"te\\u0078t\": \"escaped name\", \"t\": \"\\u0000\", \"c\": false}",
    "{\"text\": \"one\", \"text\": \"two\", \"text\": \"\"}",
    "{\"text\": 7, \"x\": \"caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\"}",
    "[1, {\"text\": \"not here\"}]",
    "  \"just a string\" ",
    "{}",
};

static void compare(const char *bytes, size_t length)
{
    struct json_line line;
    json_error_t why;
    bool good = json_line_parse(bytes, (int64_t)length, "text", &line);
    json_t *tree = json_loadb(bytes, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    enum json_error_code code = tree == NULL ? json_error_code(&why) : json_error_unknown;
    if (code == json_error_numeric_overflow || code == json_error_null_byte_in_key)
        return; // specific to jansson's types
    if (tree == NULL && good && strncmp(why.text, "invalid Unicode", 15) == 0)
        return; // lone surrogates in a string that is not read
    cr_assert_eq(good, tree != NULL, "%.*s: %s, but jansson: %s", (int)length, bytes,
                 good ? "good" : line.problem, why.text);
    if (good) {
        const json_t *value = json_object_get(tree, "text");
        enum json_found expected = !json_is_object(tree)   ? LINE_NO_OBJECT
                                   : value == NULL         ? LINE_NO_KEY
                                   : json_is_string(value) ? LINE_STRING
                                                           : LINE_NO_STRING;
        cr_assert_eq(line.found, expected, "%.*s", (int)length, bytes);
        struct text decoded = {0};
        char buffer[7]; // so that escapes and characters cross its end
        int64_t at = line.begin, got;
        while ((got = json_line_decode(&line, &at, buffer, sizeof buffer)) > 0)
            text_add_bytes(&decoded, buffer, (size_t)got);
        if (expected == LINE_STRING)
            cr_assert(decoded.length == json_string_length(value) &&
                          memcmp(text_chars(&decoded), json_string_value(value), decoded.length) == 0,
                      "%.*s", (int)length, bytes);
        text_free(&decoded);
    } else {
        cr_assert(line.at >= 0 && line.at <= (int64_t)length && line.problem != NULL);
    }
    json_decref(tree);
}

Test(json_line, agrees_with_jansson_on_random_mutants)
{
    static const char alphabet[] = "{}[]\",:\\u0123456789abcdefDEF.-+ tnrl\x80\xC3\xED\xA0\x01\x7F";
    unsigned seed = 1;
    for (int trial = 0; trial < 60000; trial++) {
        char line[256];
        const char *from = seeds[trial % (int)(sizeof seeds / sizeof *seeds)];
        size_t length = strlen(from);
        memcpy(line, from, length);
        for (int change = trial % 4; change >= 0; change--) {
            seed = seed * 1664525U + 1013904223U;
            size_t at = (seed >> 8) % (length + 1);
            char letter = alphabet[(seed >> 20) % (sizeof alphabet - 1)];
            if ((seed >> 4) % 3 == 0 && at < length)
                memmove(line + at, line + at + 1, --length - at);
            else if ((seed >> 4) % 3 == 1) {
                memmove(line + at + 1, line + at, length++ - at);
                line[at] = letter;
            } else if (at < length)
                line[at] = letter;
        }
        compare(line, length);
    }
}

Test(json_line, every_prefix_of_a_line_agrees_with_jansson)
{
    for (size_t s = 0; s < sizeof seeds / sizeof *seeds; s++)
        for (size_t length = 0; length <= strlen(seeds[s]); length++) {
            char *exact = malloc(length + 1); // so that a read past the end is detected
            memcpy(exact, seeds[s], length);
            compare(exact, length);
            free(exact);
        }
}

/* What Python's json writes and reads, and RFC 8259 does not have. */
Test(json_line, accepts_values_of_python_outside_the_text)
{
    static const struct {
        const char *line, *problem;
    } lines[] = {
        {"{\"score\": NaN, \"text\": \"a\", \"l\": [Infinity, -Infinity]}", NULL},
        {"{\"x\": \"\\ud83d\", \"text\": \"a\", \"\\udc00text\": 1}", NULL},
        {"{\"text\": \"a\", \"x\": Nan}", "expected a value"},
        {"{\"text\": \"a\", \"x\": -Inf}", "expected a value"},
        {"{\"text\": \"b\\ud83d\"}", "lone surrogate"},
        {"{\"text\": \"b\\udc00\\ud83d\"}", "lone surrogate"},
        {"{\"text\": \"b\\ud83\"}", "invalid escape sequence"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct json_line line;
        const bool good = json_line_parse(lines[i].line, (int64_t)strlen(lines[i].line), "text", &line);
        cr_assert_eq(good, lines[i].problem == NULL, "%s: %s", lines[i].line, good ? "good" : line.problem);
        if (good)
            cr_assert(line.found == LINE_STRING && line.end - line.begin == 1, "%s", lines[i].line);
        else
            cr_assert_not_null(strstr(line.problem, lines[i].problem), "%s", line.problem);
    }
}

Test(json_line, rejects_deep_nesting_without_stack_overflow)
{
    enum { DEEP = 1000000 };
    struct json_line line;
    char *deep = malloc(DEEP);
    memset(deep, '[', DEEP);
    cr_assert_not(json_line_parse(deep, DEEP, "text", &line));
    cr_assert_not_null(strstr(line.problem, "512"));
    free(deep);
}
