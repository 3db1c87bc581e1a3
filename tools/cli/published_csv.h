// SPDX-License-Identifier: Apache-2.0
/* Rows of a CSV with the columns of published tables (planner/published/published.h), cell by cell. */
#pragma once

#include "planner/published/published.h"

/* The cells of one row; {0}: all empty. */
struct published_cells {
    struct text cell[PUBLISHED_COLUMNS];
};

void published_set_number(struct published_cells *row, enum published_column column, double value);
void published_set_text(struct published_cells *row, enum published_column column, const char *text);
/* Sets the columns of model and layout. */
void published_set_recipe(struct published_cells *row, const struct recipe *recipe);
/* Appends the row as a CSV line, and empties the cells. */
void published_end_row(struct published_cells *row, struct text *out);
