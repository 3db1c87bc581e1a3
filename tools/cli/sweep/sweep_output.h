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
void sweep_html(const struct sweep *sweep, const struct sweep_measured *measured, const char *command,
                struct text *out);

/* ---- its plots: sweep_html_plots.c ---- */

/* Appends a heat map: the fastest layout for each pair of values of axes a and b. */
void sweep_html_map(const struct sweep *sweep, int a, int b, struct text *out);
/* Appends a plot of the planned layouts with the Pareto front of time and memory. */
void sweep_html_front(const struct sweep *sweep, struct text *out);
/* Measured against predicted steps; nothing if fewer than two were measured. */
void sweep_html_measured(const struct sweep *sweep, const struct sweep_measured *measured, struct text *out);
