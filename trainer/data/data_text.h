// SPDX-License-Identifier: Apache-2.0
/* Text files as a stream of documents, read in chunks, so that no file has to fit in memory.
 *
 *     plain text   unchanged bytes, split into documents by a rule of enum text_documents
 *     JSON Lines   one object per line, whose key "text" (or another) is a document; a byte order mark before
 *                  the first line is skipped
 *     packed       gzip, xz, zstd, bzip2, lz4, tar, and each in another: recognized by their first bytes; a
 *                  member of an archive is a file of its own, with its own name (unpack.h)
 *
 * Other files that are known by their first bytes (file_kind.h), and those with too many bytes that are not
 * UTF-8 (text_check.h), are BAD_DATA, unless the format is TEXT_BYTES.
 *
 * Caution: a chunk may end anywhere, even inside a character; a caller that tokenizes chunks must hold back
 * the end of each one (encoder_cut() in tokenizer.h). */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct text_check;

enum { TEXT_MAX_LINE_BYTES = 1 << 30 }; // of JSON Lines: one line is held in memory

enum text_format {
    TEXT_BY_NAME, // JSON Lines for .jsonl, .ndjson and .json, also before .gz and the like
    TEXT_PLAIN,
    TEXT_JSON_LINES,
    TEXT_BYTES // like plain text, but any bytes: not unpacked, not checked
};

enum text_documents {
    TEXT_FILE,       // each file is a document
    TEXT_BLANK_LINE, // a document ends after a series of empty lines, which belong to it
    TEXT_FORM_FEED,  // form feeds separate documents, and are dropped
    TEXT_LINES,      // a document is `lines` lines, including their line ends
    TEXT_DOCUMENTS_COUNT
};

struct text_options {
    enum text_format format;
    enum text_documents documents; // for plain text
    int64_t lines;                 // for TEXT_LINES
    const char *json_key;
};

/* Consumer of the text. `append` adds bytes to the current document; `progress` receives the number of bytes
 * of the file read since its last call, which may be 0: also several times a second while a pipe has none. A
 * status other than OK stops reading and is returned. */
struct text_sink {
    enum status (*append)(void *context, const char *bytes, int64_t length);
    enum status (*end_document)(void *context);
    enum status (*progress)(void *context, int64_t bytes);
    /* Optional: receives each line of JSON Lines that is not blank as it is, instead of `append` and
     * `end_document`; `file` is the path, "standard input", or "PATH: MEMBER", valid during the call. Lines
     * count from 1. */
    enum status (*line)(void *context, const char *file, int64_t number, const char *bytes, int64_t length);
    /* Optional: receives the message about each invalid line, which is skipped. NULL: it ends the reading. */
    enum status (*skip)(void *context, const char *why);
    /* Optional: plain text with some bytes that are not UTF-8, after its last byte. */
    void (*not_utf8)(void *context, const char *file, const struct text_check *check);
    void *context;
};

/* Whether `path` is read as JSON Lines. */
bool text_is_json(const char *path, const struct text_options *options);

/* Reads `path` ("-": standard input) to its end. IO_ERROR names the file, BAD_DATA the file and the line. */
MUST_USE enum status text_read(const char *path, const struct text_options *options,
                               const struct text_sink *sink);
