// SPDX-License-Identifier: Apache-2.0
/* What cuboid sweep prints and writes. */
#pragma once

#include "tools/cli/measure/journal.h"
#include "trainer/plan/sweep/sweep.h"

/* A run of one of the best layouts; RUN_QUEUED: it was not run. */
struct sweep_measured {
    enum run_state state;
    double step_s; // 0 unless done
};

/* The best `top` layouts, and the reasons of those without a plan. */
void sweep_print(const struct sweep *sweep, int64_t top, FILE *to);
/* The legal layouts as a table that cuboid table reads: fastest first, then those that do not fit. */
MUST_USE enum status sweep_csv(const struct sweep *sweep, struct text *out);
/* One self-contained page. measured: [sweep->best_count]; NULL: none was run. */
void sweep_html(const struct sweep *sweep, const struct sweep_measured *measured, struct text *out);

/* ---- its plots: sweep_html_plots.c ---- */

/* Heat map: the fastest layout with each pair of values of two axes. */
void sweep_html_map(const struct sweep *sweep, int a, int b, struct text *out);
/* Planned layouts, and the Pareto front of time and memory. */
void sweep_html_front(const struct sweep *sweep, struct text *out);
/* Measured against predicted steps; nothing if fewer than two were measured. */
void sweep_html_measured(const struct sweep *sweep, const struct sweep_measured *measured, struct text *out);
