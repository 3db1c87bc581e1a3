// SPDX-License-Identifier: Apache-2.0
/* The table of columns, private to this folder. */
#pragma once

#include "planner/published/published.h"

enum column_type {
    COLUMN_TEXT,
    COLUMN_COUNT, // an integer; "250k" is 250000
    COLUMN_REAL
};

struct column_descriptor {
    const char *name;
    const char *unit; // of numbers; "" if it needs none
    enum column_type type;
    double low, high; // of numbers, inclusive
};

extern const struct column_descriptor column_descriptors[PUBLISHED_COLUMNS];

/* Index of a column by name; -1: unknown. */
int column_find(const char *name);
/* Parses a cell that is not empty; false if it is not a number of this column's type and range. */
bool column_parse(const struct column_descriptor *column, const char *cell, double *out);
/* "an integer from 1 to 65536", "a number from 1 to 100 (percent)". */
void column_expected(const struct column_descriptor *column, struct text *out);
