// SPDX-License-Identifier: Apache-2.0
/* Output of cuboid sweep. */
#pragma once

#include "planner/sweep/sweep.h"
#include "tools/cli/measure/journal.h"

/* The run of one of the best layouts; RUN_QUEUED: it was not run. */
struct sweep_measured {
    enum run_state state;
    double step_s; // 0 unless done
};

/* Prints the best `top` layouts, and the reasons for those without a plan. */
void sweep_print(const struct sweep *sweep, int64_t top, FILE *to);
/* Appends the valid layouts as a table that cuboid table reads: fastest first, then those that do not fit. */
MUST_USE enum status sweep_csv(const struct sweep *sweep, struct text *out);
/* Appends one self-contained HTML page. measured: [sweep->best_count]; NULL: no layout was run. command: the
 * command line. */
void sweep_page(const struct sweep *sweep, const struct sweep_measured *measured, const char *command,
                struct text *out);
