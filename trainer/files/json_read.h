// SPDX-License-Identifier: Apache-2.0
/* Parses JSON with jansson. jansson reports a failed allocation as invalid JSON, or ignores it; here it ends
 * the program with status 1, as in base/text.h, so that an intact file is never reported as corrupt. */
#pragma once

#include <stddef.h>

struct json_t;
struct json_error_t;

/* Wraps json_loadb(); NULL means that the bytes are not JSON, or that they consist of tiny objects, which
 * would take more than 64 times their length in memory. */
struct json_t *json_read(const char *bytes, size_t length, size_t flags, struct json_error_t *error);

enum { JSON_SHOWN_CHARS = 64 };
/* Formats a value for a message: at most 60 characters of it. NULL: "?". */
const char *json_shown(const struct json_t *value, char out[JSON_SHOWN_CHARS]);
