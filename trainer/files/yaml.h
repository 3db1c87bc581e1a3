// SPDX-License-Identifier: Apache-2.0
/* The part of YAML that recipes and cluster profiles may use, as a small tree: mappings, lists and scalars
 * with their positions.
 *
 * Not supported on purpose, with an error message: anchors, aliases and merge keys (`base:` shares settings),
 * tags, several documents, tabs in the indentation. Input is bounded before it is parsed, and the tree
 * while it is built, so no file can exhaust time or memory. */
#pragma once

#include "base/text.h"

#include <sys/types.h>

enum node_kind { NODE_SCALAR, NODE_LIST, NODE_MAP };

struct node {
    enum node_kind kind;
    bool plain;          // a scalar without quotes
    int line;            // counted from 1
    char *text;          // of a scalar, terminated; has no 0 inside
    struct node **child; // a list's items; a mapping's key, value, key, value ...
    size_t count;        // of children
};

struct problems;

enum { YAML_MAX_BYTES = 1 << 20, YAML_MAX_DEPTH = 16, YAML_MAX_NODES = 20000 };

/* Parses `length` bytes with a 0 after them; `name` is the file's, for "NAME:LINE:COLUMN: ...". NULL after
 * adding a problem. An empty document is an empty mapping. */
struct node *yaml_parse(const char *name, const char *bytes, size_t length, struct problems *problems);

/* Takes NULL. */
void node_free(struct node *node);

/* A plain scalar on the heap, for values that were not in a file. */
struct node *node_scalar(const char *text);

/* Whether all of `text` is UTF-8 that needs no escapes in a YAML file. */
bool text_is_printable(const char *text);
/* Appends `chars` with whatever could break a line or a YAML comment replaced by '?'. */
void text_add_clean(struct text *out, const char *chars);
/* Appends a text as a scalar, quoted if it could be read as something else: YAML syntax, true, none or the
 * word `reserved` (may be NULL). NULL is none. */
void yaml_add_string(struct text *out, const char *string, const char *reserved);

/* Reads `path`, up to one byte more than YAML_MAX_BYTES. Returns NULL, or the reason of the failure. Accepts
 * regular files, and unnamed pipes (`<(...)`, /dev/stdin) that are being written; never blocks on anything
 * else. */
const char *yaml_file_read(const char *path, struct text *out, dev_t *device, ino_t *inode);
