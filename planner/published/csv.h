// SPDX-License-Identifier: Apache-2.0
/* CSV as in RFC 4180: records of cells, which may be quoted and then contain commas, line ends and "" for a
 * quote. Lines end with LF or CRLF. Stricter than many readers: a quote inside an unquoted cell, text after a
 * closing quote, an unclosed quote and a zero byte are errors. Input is bounded, so no file can exhaust time
 * or memory. */
#pragma once

#include "base/text.h"

struct problems;

enum { CSV_MAX_BYTES = 16 << 20, CSV_MAX_CELL = 1 << 16, CSV_MAX_CELLS = 256, CSV_MAX_RECORDS = 100000 };

struct csv_record {
    int line;                 // of its first byte, counted from 1
    size_t first_cell, count; // in csv.cells
};

struct csv {
    char *bytes;        // all cells, each terminated
    const char **cells; // into `bytes`
    struct csv_record *records;
    size_t cell_count, record_count;
};

/* Parses `length` bytes; `name`: file name for messages, "NAME:LINE: ...". A byte order mark and empty lines
 * are skipped. False after adding problems; *out is empty then. */
bool csv_parse(const char *name, const char *bytes, size_t length, struct csv *out,
               struct problems *problems);
void csv_free(struct csv *csv);

/* Appends a cell, in quotes if it needs them. */
void csv_add_cell(struct text *out, const char *cell);
