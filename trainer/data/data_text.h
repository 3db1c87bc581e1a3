// SPDX-License-Identifier: Apache-2.0
/* Text files as a stream of documents, in pieces, so that no file needs to fit in memory.
 *
 *     plain text   bytes as they are, UTF-8 or not, cut into documents by a rule of enum text_documents
 *     JSON Lines   one object a line, whose key "text" (or another) is a document; a byte order mark in
 *                  front of the first is skipped
 *
 * The trap: a piece is cut anywhere, even inside a character; who tokenizes pieces holds back the end of
 * each one (encoder_cut() in tokenizer.h). */
#pragma once

#include "base/status.h"

#include <stdint.h>

enum { TEXT_MOST_LINE_BYTES = 1 << 30 }; // of JSON Lines: a line is held in memory, once

enum text_format { TEXT_BY_NAME, TEXT_PLAIN, TEXT_JSON_LINES }; // by name: JSON for .jsonl, .ndjson and .json

enum text_documents {
    TEXT_FILE,       // a file is a document
    TEXT_BLANK_LINE, // a document ends with the empty lines after it, which stay in it
    TEXT_FORM_FEED,  // form feeds stand between documents, and are left out
    TEXT_LINES,      // a document is `lines` lines, with their line ends
    TEXT_DOCUMENTS_COUNT
};

struct text_options {
    enum text_format format;
    enum text_documents documents; // for plain text
    int64_t lines;                 // for TEXT_LINES
    const char *json_key;
};

/* Who takes the pieces. `progress` is told the bytes read since it was told last. A status other than OK from
 * either ends the reading, and is passed on. */
struct text_sink {
    enum status (*piece)(void *context, const char *bytes, int64_t length);
    enum status (*end_document)(void *context);
    enum status (*progress)(void *context, int64_t bytes);
    void *context;
};

/* Reads `path` ("-" is standard input) to its end. IO_ERROR names the file, BAD_DATA the file and the line.
 */
MUST_USE enum status text_read(const char *path, const struct text_options *options,
                               const struct text_sink *sink);
