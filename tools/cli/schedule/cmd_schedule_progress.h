// SPDX-License-Identifier: Apache-2.0
/* A progress line on the terminal for work that takes longer than a second: "auto: 45 %, 8 s left". Not
 * printed if standard error is not a terminal, and removed when the work is done. */
#pragma once

#include "schedules/schedule.h"

struct reporter {
    struct progress progress; // for schedule_options.progress
    const char *what;         // "auto"
    double from, to;          // the fraction of all work that 0 to 100 percent correspond to
    double begun, shown;      // times in seconds; shown 0: not yet
    bool terminal;
};

/* `reporter` must not move. */
void reporter_begin(struct reporter *reporter, const char *what);
/* Maps the following progress reports to the range from `from` to `to` percent of all work. */
void reporter_part(struct reporter *reporter, const char *what, double from, double to);
/* Removes the line. */
void reporter_end(struct reporter *reporter);
