// SPDX-License-Identifier: Apache-2.0
/* The table of columns, for the files rows_*.c only. */
#pragma once

#include "trainer/plan/rows/rows.h"

enum column_type {
    COLUMN_TEXT,
    COLUMN_COUNT, // an integer; "250k" is 250000
    COLUMN_REAL
};

struct column_row {
    const char *name;
    const char *unit; // of numbers; "" if it needs none
    enum column_type type;
    double low, high; // of numbers, inclusive
};

extern const struct column_row column_rows[PUBLISHED_COLUMNS];

/* -1: unknown. */
int column_find(const char *name);
/* Parses a cell that is not empty; false if it is no number of this column's type and range. */
bool column_parse(const struct column_row *column, const char *cell, double *out);
/* "an integer from 1 to 65536", "a number from 1 to 100 (percent)". */
void column_expected(const struct column_row *column, struct text *out);
