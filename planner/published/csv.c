// SPDX-License-Identifier: Apache-2.0
/* Cells are unquoted in place: the write position never overtakes the read position. */
#include "planner/published/csv.h"

#include "base/memory.h"
#include "trainer/recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    struct csv *csv;
    const char *name;
    struct problems *problems;
    char *in, *end, *out; // next byte to read; past the last; next byte to write
    int line;
    size_t cell_capacity, record_capacity;
};

static void *grown(void *list, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return list;
    *capacity = *capacity == 0 ? 64 : 2 * *capacity;
    return memory_resized(list, *capacity, size, "a table");
}

static void refuse(struct reader *reader, const char *why)
{
    const struct csv *csv = reader->csv;
    const struct csv_record *record = &csv->records[csv->record_count];
    problems_add(reader->problems, "%s:%d: cell %zu: %s", reader->name, reader->line,
                 csv->cell_count - record->first_cell + 1, why);
}

/* Whether the next byte ends a cell: a comma, a line end, or the end of the file. */
static bool at_separator(const struct reader *reader)
{
    const char *in = reader->in;
    return in == reader->end || *in == ',' || *in == '\n' ||
           (*in == '\r' && in + 1 < reader->end && in[1] == '\n');
}

static bool read_quoted(struct reader *reader)
{
    const int line = reader->line;
    for (reader->in++; reader->in < reader->end; *reader->out++ = *reader->in++) {
        reader->line += *reader->in == '\n';
        if (*reader->in != '"')
            continue;
        if (reader->in + 1 == reader->end || reader->in[1] != '"')
            break;
        reader->in++;
    }
    if (reader->in == reader->end) {
        reader->line = line;
        refuse(reader, "the quote is never closed");
        return false;
    }
    reader->in++;
    if (!at_separator(reader)) {
        refuse(reader,
               "expected a comma or a line end after the closing quote; a quote in a cell is written \"\"");
        return false;
    }
    return true;
}

static bool read_plain(struct reader *reader)
{
    for (; !at_separator(reader); *reader->out++ = *reader->in++)
        if (*reader->in == '"') {
            refuse(reader, "a quote in a cell without quotes; quote the cell and write \"\" for it");
            return false;
        }
    return true;
}

/* Reads one cell, without the separator after it. */
static bool read_cell(struct reader *reader)
{
    struct csv *csv = reader->csv;
    char *begin = reader->out;
    if (csv->cell_count - csv->records[csv->record_count].first_cell == CSV_MAX_CELLS) {
        refuse(reader, "more than 256 cells in a line");
        return false;
    }
    bool quoted = reader->in < reader->end && *reader->in == '"';
    if (!(quoted ? read_quoted(reader) : read_plain(reader)))
        return false;
    if (reader->out - begin > CSV_MAX_CELL) {
        refuse(reader, "longer than 64 KiB");
        return false;
    }
    csv->cells = grown(csv->cells, csv->cell_count, &reader->cell_capacity, sizeof *csv->cells);
    csv->cells[csv->cell_count++] = begin;
    return true;
}

/* Skips the separator after a cell, and terminates the cell. *ends: the record ends, too. */
static void end_cell(struct reader *reader, bool *ends)
{
    *ends = reader->in == reader->end || *reader->in != ',';
    if (reader->in < reader->end && *reader->in == '\r')
        reader->in++;
    if (reader->in < reader->end) {
        reader->line += *reader->in == '\n';
        reader->in++;
    }
    *reader->out++ = 0;
}

static bool read_record(struct reader *reader)
{
    struct csv *csv = reader->csv;
    csv->records = grown(csv->records, csv->record_count, &reader->record_capacity, sizeof *csv->records);
    struct csv_record *record = &csv->records[csv->record_count];
    *record = (struct csv_record){.line = reader->line, .first_cell = csv->cell_count};
    if (csv->record_count == CSV_MAX_RECORDS) {
        refuse(reader, "more than 100000 lines");
        return false;
    }
    for (bool ends = false; !ends;) {
        if (!read_cell(reader))
            return false;
        end_cell(reader, &ends);
    }
    record->count = csv->cell_count - record->first_cell;
    if (record->count == 1 && *csv->cells[record->first_cell] == 0)
        csv->cell_count--; // an empty line
    else
        csv->record_count++;
    return true;
}

/* Checks for errors of the file as a whole. */
static bool check_bytes(const char *name, const char *bytes, size_t length, struct problems *problems)
{
    const char *zero = memchr(bytes, 0, length);
    int line = 1;
    if (length > CSV_MAX_BYTES)
        problems_add(problems, "%s: larger than 16 MiB; divide the table", name);
    else if (zero != NULL) {
        for (const char *c = bytes; c < zero; c++)
            line += *c == '\n';
        problems_add(problems, "%s:%d: a 0 byte; the file is not text", name, line);
    }
    return length <= CSV_MAX_BYTES && zero == NULL;
}

bool csv_parse(const char *name, const char *bytes, size_t length, struct csv *out, struct problems *problems)
{
    *out = (struct csv){.bytes = NULL};
    if (!check_bytes(name, bytes, length, problems))
        return false;
    // One more byte, to terminate the last cell even if no line end follows it.
    out->bytes = memory_resized(NULL, length + 1, 1, "a table");
    memcpy(out->bytes, bytes, length);
    struct reader reader = {.csv = out, .name = name, .problems = problems, .line = 1};
    reader.in = reader.out = out->bytes;
    reader.end = out->bytes + length;
    if (length >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0)
        reader.in += 3;
    while (reader.in < reader.end)
        if (!read_record(&reader)) {
            csv_free(out);
            return false;
        }
    return true;
}

void csv_free(struct csv *csv)
{
    free(csv->bytes);
    free(csv->cells);
    free(csv->records);
    *csv = (struct csv){.bytes = NULL};
}

void csv_add_cell(struct text *out, const char *cell)
{
    if (cell[strcspn(cell, ",\"\r\n")] == 0) {
        text_add(out, "%s", cell);
        return;
    }
    text_add(out, "\"");
    for (; *cell != 0; cell++)
        text_add_bytes(out, *cell == '"' ? "\"\"" : cell, *cell == '"' ? 2 : 1);
    text_add(out, "\"");
}
