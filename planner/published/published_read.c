// SPDX-License-Identifier: Apache-2.0
#include "planner/published/published.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 60 };

/* Finds the column of each cell of the header; below 0: unknown. */
static void read_header(const struct published *table, int columns[CSV_MAX_CELLS], struct problems *problems)
{
    const struct csv_record *header = &table->csv.records[0];
    int first[PUBLISHED_COLUMNS] = {0};
    for (size_t i = 0; i < header->count; i++) {
        const char *name = table->csv.cells[header->first_cell + i], *names[PUBLISHED_COLUMNS];
        for (int k = 0; k < PUBLISHED_COLUMNS; k++)
            names[k] = column_descriptors[k].name;
        columns[i] = column_find(name);
        const char *near = columns[i] < 0 ? nearest_name(name, names, PUBLISHED_COLUMNS) : NULL;
        if (columns[i] < 0)
            problems_add(problems, "%s:%d: unknown column %zu: \"%.*s\"; %s%s%s", table->path, header->line,
                         i + 1, SHOWN, name, near != NULL ? "did you mean " : "", near != NULL ? near : "",
                         near != NULL ? "?" : "remove it (cuboid table --columns)");
        else if (first[columns[i]] > 0)
            problems_add(problems, "%s:%d: column %s occurs twice, as columns %d and %zu; remove one of them",
                         table->path, header->line, name, first[columns[i]], i + 1);
        else
            first[columns[i]] = (int)i + 1;
    }
}

static void read_cell(const struct published *table, struct published_row *row, int column, const char *cell,
                      struct problems *problems)
{
    const struct column_descriptor *kind = &column_descriptors[column];
    struct text expected = {0};
    row->cell[column] = cell;
    if (kind->type == COLUMN_TEXT || *cell == 0 || column_parse(kind, cell, &row->number[column]))
        return;
    row->number[column] = NAN;
    column_expected(kind, &expected);
    problems_add(problems, "%s:%d: column %s: \"%.*s\" is not %s", table->path, row->line, kind->name, SHOWN,
                 cell, expected.chars);
    text_free(&expected);
}

static void read_rows(struct published *table, const int *columns, struct problems *problems)
{
    const size_t width = table->csv.records[0].count;
    for (size_t i = 1; i < table->csv.record_count; i++) {
        const struct csv_record *record = &table->csv.records[i];
        struct published_row *row = &table->rows[table->count++];
        row->line = record->line;
        for (int k = 0; k < PUBLISHED_COLUMNS; k++) {
            row->cell[k] = "";
            row->number[k] = NAN;
        }
        if (record->count != width)
            problems_add(problems, "%s:%d: %zu cells; the header has %zu columns; complete or remove the row",
                         table->path, record->line, record->count, width);
        else
            for (size_t k = 0; k < width; k++)
                if (columns[k] >= 0)
                    read_cell(table, row, columns[k], table->csv.cells[record->first_cell + k], problems);
    }
}

/* Whether a table of `bytes` bytes may have so many rows: those with values in their columns have more, so
 * that the memory is in proportion to the file. */
static bool rows_fit(size_t count, size_t bytes)
{
    enum { TIMES_SIZE = 32, SPARE_BYTES = 8 << 20 };
    return count <= (TIMES_SIZE * bytes + SPARE_BYTES) / sizeof(struct published_row);
}

static void read_records(struct published *table, struct problems *problems)
{
    int columns[CSV_MAX_CELLS];
    table->rows = memory_zeroed(table->csv.record_count, sizeof *table->rows, "a table");
    read_header(table, columns, problems);
    read_rows(table, columns, problems);
}

enum status published_parse(const char *path, const char *bytes, size_t length, struct published *out,
                            struct problems *problems)
{
    const size_t before = problems->errors;
    *out = (struct published){.path = text_copy(path)};
    if (csv_parse(path, bytes, length, &out->csv, problems)) {
        if (out->csv.record_count == 0)
            problems_add(problems, "%s: empty; the first line has the names of the columns", path);
        else if (!rows_fit(out->csv.record_count, length))
            problems_add(problems, "%s: %zu rows in %zu bytes are almost empty; remove those without values",
                         path, out->csv.record_count, length);
        else
            read_records(out, problems);
    }
    if (problems->errors == before)
        return OK;
    published_free(out);
    return problems_fail(problems, before, BAD_DATA, path);
}

enum status published_read(const char *path, struct published *out, struct problems *problems)
{
    struct text bytes = {0};
    *out = (struct published){.path = NULL};
    enum status status = file_read_small(path, CSV_MAX_BYTES, &bytes);
    if (status == OK)
        status = published_parse(path, text_chars(&bytes), bytes.length, out, problems);
    text_free(&bytes);
    return status;
}

void published_free(struct published *table)
{
    free(table->path);
    free(table->rows);
    csv_free(&table->csv);
    *table = (struct published){.path = NULL};
}
