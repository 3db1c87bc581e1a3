// SPDX-License-Identifier: Apache-2.0
/* Interface between the two halves of the reader: cells to lists (csv_read.c), and lists to a placement and a
 * checked schedule (csv_placement.c). */
#pragma once

#include "schedules/families/family.h"

struct span {
    const char *at; // NULL: no cell, not even an empty one
    size_t length;
};

/* A file being parsed: line r + 1 has the actions of rank r. */
struct csv {
    const char *name;
    struct span *lines;        // [p]
    struct action_list *ranks; // [p]
    int p, stages, m;
    int actions, forwards;
    bool has_transfers;
};

/* Fails with "FILE, line 3 (rank 2), cell 7: MESSAGE" for the cell of the action at `position` of the rank's
 * list, or for the whole line if position is -1. Returns BAD_SCHEDULE. */
PRINTF_LIKE(4, 5)
enum status csv_fail(const struct csv *csv, int rank, int position, const char *format, ...);

/* Creates the schedule from the lists and takes ownership of them. Every stage and microbatch is below
 * csv->actions. */
MUST_USE enum status csv_schedule(struct csv *csv, struct schedule **out);
