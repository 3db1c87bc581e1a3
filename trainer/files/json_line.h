// SPDX-License-Identifier: Apache-2.0
/* Parses one line of JSON Lines: checks the whole line against RFC 8259, and finds the string under one key
 * of the object. The line is parsed in place and the string is decoded in chunks, so a line of any
 * length needs no additional memory.
 *
 *     {"id": 7, "text": "a\u00e9\n", "meta": [1, 2]}       key "text" ->  a C3 A9 0A
 *
 * The last of duplicate keys counts. Numbers are checked, not converted: any magnitude is valid.
 * As in Python's json, whose writer makes them, NaN and Infinity are values, and strings may have lone
 * surrogates ("\ud83d" without its other half), except for the string that is found, which must be text. */
#pragma once

#include "base/status.h"

#include <stdint.h>

enum json_found { LINE_NO_OBJECT, LINE_NO_KEY, LINE_NO_STRING, LINE_STRING };

struct json_line {
    const char *bytes;
    int64_t length;
    enum json_found found;
    int64_t begin, end;  // the string between its quotes, still encoded
    int64_t at;          // position of a syntax error
    const char *problem; // description of the error
};

/* Returns false if the line is not JSON: see `at` and `problem`. `key` is UTF-8. */
bool json_line_parse(const char *bytes, int64_t length, const char *key, struct json_line *out);

/* Decodes the next bytes of the string into out[0..capacity) and advances *at, which is initially `begin`.
 * Returns their number, 0 at the end of the string. Capacity is at least 4. */
int64_t json_line_decode(const struct json_line *line, int64_t *at, char *out, int64_t capacity);
