// SPDX-License-Identifier: Apache-2.0
/* What cuboid sweep prints and writes. */
#pragma once

#include "trainer/plan/sweep/sweep.h"

/* The best `top` layouts, and the reasons of those without a plan. */
void sweep_print(const struct sweep *sweep, int64_t top, FILE *to);
/* The legal layouts as a table that cuboid table reads: fastest first, then those that do not fit. */
MUST_USE enum status sweep_csv(const struct sweep *sweep, struct text *out);
/* One self-contained page. */
void sweep_html(const struct sweep *sweep, struct text *out);

/* ---- its plots: sweep_html_plots.c ---- */

/* Heat map: the fastest layout with each pair of values of two axes. */
void sweep_html_map(const struct sweep *sweep, int a, int b, struct text *out);
/* Planned layouts, and the Pareto front of time and memory. */
void sweep_html_front(const struct sweep *sweep, struct text *out);
