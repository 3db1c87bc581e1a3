// SPDX-License-Identifier: Apache-2.0
/* Bytes that are read once, in order: of a file or a pipe, or of what a compressed file contains.
 *
 *     source_head(s)  ->  the first 512 bytes, which say what the source is (file_kind.h)
 *     source_next(s)  ->  all bytes in chunks, from the first one on */
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

enum { SOURCE_HEAD_BYTES = 512 };

struct byte_source {
    const char *name; // for messages
    /* The next bytes, valid until the next call; *count 0 at the end. Errors name the source. */
    enum status (*read)(struct byte_source *source, const char **bytes, int64_t *count);
    int64_t taken;    // bytes that read() has returned
    struct text head; // read, and not yet returned by source_next()
};

/* Reads at least SOURCE_HEAD_BYTES ahead, or to the end; they are then in source->head. */
MUST_USE enum status source_head(struct byte_source *source);
/* The next bytes, valid until the next call; *count 0 at the end. */
MUST_USE enum status source_next(struct byte_source *source, const char **bytes, int64_t *count);

/* A file, a pipe, or with the path "-" standard input. `progress` receives the number of bytes of each read,
 * and several times a second 0 while a pipe has none; a status other than OK ends the reading. */
struct file_source;
MUST_USE enum status file_source_open(const char *path, enum status (*progress)(void *context, int64_t bytes),
                                      void *context, struct file_source **out);
void file_source_close(struct file_source *file); // accepts NULL
struct byte_source *file_source_bytes(struct file_source *file);
