// SPDX-License-Identifier: Apache-2.0
/* One line on the terminal for work that takes longer than a second: "auto: 45 %, 8 s left". Where standard
 * error is no terminal there is none. The line is gone when the work is done, so that only results stay. */
#pragma once

#include "schedules/schedule.h"

struct reporter {
    struct progress progress; // for schedule_options.progress
    const char *what;         // "auto"
    double from, to;          // the part of all work that its 0 to 100 per cent are
    double begun, shown;      // seconds of a clock; shown 0: not yet
    bool terminal;
};

/* `reporter` is to stay where it is. */
void reporter_begin(struct reporter *reporter, const char *what);
/* What is told next is so much of the whole, from `from` to `to` per cent. */
void reporter_part(struct reporter *reporter, const char *what, double from, double to);
/* Takes the line away. */
void reporter_end(struct reporter *reporter);
