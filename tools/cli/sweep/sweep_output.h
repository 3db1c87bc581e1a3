// SPDX-License-Identifier: Apache-2.0
/* What cuboid sweep prints and writes. */
#pragma once

#include "trainer/plan/sweep/sweep.h"

/* The best `top` layouts, and the reasons of those without a plan. */
void sweep_print(const struct sweep *sweep, int64_t top, FILE *to);
/* The legal layouts as a table that cuboid table reads: fastest first, then those that do not fit. */
MUST_USE enum status sweep_csv(const struct sweep *sweep, struct text *out);
