// SPDX-License-Identifier: Apache-2.0
/* Output of cuboid schedule, to standard output and to files. */
#pragma once

#include "schedules/simulate.h"
#include "tools/cli/output.h"

/* A simulated schedule. */
struct simulated {
    const char *name;
    const struct schedule *schedule;
    const struct cost_table *whole; // its costs, of a whole rank
    const struct simulation *simulation;
};

/* Returns the rank with the largest bubble, and its bubble as a fraction of its span. */
int worst_rank(const struct simulation *simulation);
double bubble_fraction(const struct simulation *simulation);

/* Returns true if `file` is a terminal and colours are enabled: not if NO_COLOR is set, or TERM is dumb or
 * missing. */
bool terminal_colours(int file);

void print_schedule_list(void);
void print_schedule_text(const struct simulated *simulated);  // the chart, the totals, the critical path
void print_schedule_times(const struct simulated *simulated); // a line per action
MUST_USE enum status
print_schedule_csv(const struct simulated *simulated); // a file's text: schedules/csv/csv.h
void print_schedule_json(const struct simulated *simulated);

/* `report`: reports the written files on standard output. */
MUST_USE enum status write_schedule_svg(const struct simulated *simulated, bool critical,
                                        const struct output *to, bool report);
MUST_USE enum status write_schedule_trace(const struct simulated *simulated, const struct output *to,
                                          bool report);
