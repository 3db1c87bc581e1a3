// SPDX-License-Identifier: Apache-2.0
/* What cuboid schedule writes, to standard output and into files. */
#pragma once

#include "schedules/simulate.h"
#include "tools/cli/schedule/cmd_schedule_files.h"

/* A schedule that was played against a clock. */
struct played {
    const char *name;
    const struct schedule *schedule;
    const struct cost_table *whole; // what it takes, of a whole rank
    const struct simulation *simulation;
};

/* The rank that waits longest, and its bubble as a part of its span. */
int worst_rank(const struct simulation *simulation);
double bubble_fraction(const struct simulation *simulation);

/* Whether `file` is a terminal that is to get colours: not where NO_COLOR is set, or TERM is dumb or missing.
 */
bool terminal_colours(int file);

void print_schedule_list(void);
void print_schedule_text(const struct played *played);  // the chart, the totals, the critical path
void print_schedule_times(const struct played *played); // a line per action
MUST_USE enum status print_schedule_csv(const struct played *played); // a file's text: schedules/csv/csv.h
void print_schedule_json(const struct played *played);

/* `say`: on standard output, what was written. */
MUST_USE enum status write_schedule_svg(const struct played *played, bool critical, const struct output *to,
                                        bool say);
MUST_USE enum status write_schedule_trace(const struct played *played, const struct output *to, bool say);
