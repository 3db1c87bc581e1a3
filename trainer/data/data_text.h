// SPDX-License-Identifier: Apache-2.0
/* Text files as a stream of documents, read in chunks, so that no file has to fit in memory.
 *
 *     plain text   unchanged bytes, UTF-8 or not, split into documents by a rule of enum text_documents
 *     JSON Lines   one object per line, whose key "text" (or another) is a document; a byte order mark before
 *                  the first line is skipped
 *
 * Caution: a chunk may end anywhere, even inside a character; a caller that tokenizes chunks must hold back
 * the end of each one (encoder_cut() in tokenizer.h). */
#pragma once

#include "base/status.h"

#include <stdint.h>

enum { TEXT_MAX_LINE_BYTES = 1 << 30 }; // of JSON Lines: one line is held in memory

enum text_format {
    TEXT_BY_NAME,
    TEXT_PLAIN,
    TEXT_JSON_LINES
}; // by name: JSON Lines for .jsonl, .ndjson and
    // .json

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
 * read since its last call, several times a second while a pipe has none (0). A status other than OK stops
 * reading and is returned. */
struct text_sink {
    enum status (*append)(void *context, const char *bytes, int64_t length);
    enum status (*end_document)(void *context);
    enum status (*progress)(void *context, int64_t bytes);
    /* Optional: receives each line of JSON Lines that is not blank as it is, instead of `append` and
     * `end_document`; `file` is the path, or "standard input". Lines count from 1. */
    enum status (*line)(void *context, const char *file, int64_t number, const char *bytes, int64_t length);
    void *context;
};

/* Whether `path` is read as JSON Lines. */
bool text_is_json(const char *path, const struct text_options *options);

/* Reads `path` ("-": standard input) to its end. IO_ERROR names the file, BAD_DATA the file and the line. */
MUST_USE enum status text_read(const char *path, const struct text_options *options,
                               const struct text_sink *sink);
