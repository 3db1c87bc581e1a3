// SPDX-License-Identifier: Apache-2.0
/* One line of JSON Lines: checks the whole line against RFC 8259, and finds the string under one key of the
 * object. The line is read in place and the string is decoded a piece at a time, so that a line of any length
 * takes no memory beyond its own bytes.
 *
 *     {"id": 7, "text": "a\u00e9\n", "meta": [1, 2]}       key "text" ->  a C3 A9 0A
 *
 * Of a key that is given twice the last one counts. Numbers are checked, not computed: any magnitude is good.
 */
#pragma once

#include "base/status.h"

#include <stdint.h>

enum json_found { LINE_NO_OBJECT, LINE_NO_KEY, LINE_NO_STRING, LINE_STRING };

struct json_line {
    const char *bytes;
    int64_t length;
    enum json_found found;
    int64_t begin, end;  // the string between its quotes, not decoded yet
    int64_t at;          // where the line is no JSON
    const char *problem; // what is wrong there
};

/* False when the line is no JSON: see `at` and `problem`. `key` is UTF-8. */
bool json_line_parse(const char *bytes, int64_t length, const char *key, struct json_line *out);

/* The next decoded bytes of the string into out[0..capacity), and the position of the next in *at, which is
 * `begin` at first: returns how many, 0 at the end of the string. Capacity is at least 4. */
int64_t json_line_decode(const struct json_line *line, int64_t *at, char *out, int64_t capacity);
