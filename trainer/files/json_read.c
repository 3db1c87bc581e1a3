// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/json_read.h"

#include "base/status.h"
#include "base/text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL && bytes > 0)
        die_of(NO_MEMORY, "out of memory: no %zu bytes to parse JSON; raise the limit (ulimit -v)", bytes);
    return memory;
}

/* Runs before main(), since ranks as threads parse concurrently. */
__attribute__((constructor)) static void set_allocator(void)
{
    json_set_alloc_funcs(allocate, free);
}

/* Whether a text has so many objects that they would take more than 64 times its length: an empty object, in
 * three bytes, takes some 250. No other value takes as much. */
static bool has_tiny_objects(const char *bytes, size_t length)
{
    enum { OBJECT_BYTES = 256, TIMES_LENGTH = 60, SPARE_BYTES = 8 << 20 };
    size_t objects = 0;
    for (size_t i = 0; i < length; i++)
        objects += bytes[i] == '{';
    return objects > (TIMES_LENGTH * length + SPARE_BYTES) / OBJECT_BYTES;
}

/* jansson's messages about zero bytes name flags of its interface, and it has none of its own for half of a
 * surrogate pair. The last byte of the text is the code. */
static void explain(json_error_t *error)
{
    static const char half[] = "invalid Unicode '\\uD";
    if (strncmp(error->text, half, sizeof half - 1) == 0)
        snprintf(error->text, sizeof error->text - 1, "lone surrogate, half of a character");
    const enum json_error_code code = json_error_code(error);
    if (code == json_error_null_character || code == json_error_null_byte_in_key)
        snprintf(error->text, sizeof error->text - 1, "%s has the character \\u0000; remove it",
                 code == json_error_null_character ? "a string" : "a key");
}

json_t *json_read(const char *bytes, size_t length, size_t flags, json_error_t *error)
{
    if (!has_tiny_objects(bytes, length)) {
        json_t *root = json_loadb(bytes, length, flags, error);
        if (root == NULL && error != NULL)
            explain(error);
        return root;
    }
    if (error != NULL)
        *error = (json_error_t){.line = 1, .column = 1, .text = "too many objects for a file of its length"};
    return NULL;
}

const char *json_shown(const json_t *value, char out[JSON_SHOWN_CHARS])
{
    char *text =
        value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    text_printable(text != NULL ? text : "?", out, JSON_SHOWN_CHARS - 3);
    if (text != NULL && strlen(text) > JSON_SHOWN_CHARS - 4)
        memcpy(out + strlen(out), "...", 4);
    free(text);
    return out;
}
