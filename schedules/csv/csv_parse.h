// SPDX-License-Identifier: Apache-2.0
/* Between the two halves of reading a schedule file: cells to lists (csv_read.c), and from the lists to a
 * placement and a checked schedule (csv_place.c). */
#pragma once

#include "schedules/families/family.h"

struct span {
    const char *at; // NULL: nothing, not even an empty cell
    size_t length;
};

/* A file while it is read: line r + 1 has the actions of rank r. */
struct csv {
    const char *name;
    struct span *lines;        // [p]
    struct action_list *ranks; // [p]
    int p, stages, m;
    int actions, forwards;
    bool has_transfers;
};

/* Fails with "FILE, line 3 (rank 2), cell 7: WORDS": the cell that has the action at `position` of the rank's
 * list; the line as a whole where position is -1. Returns BAD_SCHEDULE. */
PRINTF_LIKE(4, 5)
enum status csv_complain(const struct csv *csv, int rank, int position, const char *format, ...);

/* The schedule that the lists are, which it takes over. Every stage and microbatch is below csv->actions. */
MUST_USE enum status csv_schedule(struct csv *csv, struct schedule **out);
