// SPDX-License-Identifier: Apache-2.0
/* The real program on a device that computes nothing: one rank of each pipeline coordinate is made and takes
 * one step, and what it allocated is what a run will allocate (rehearsal.h). Nothing is read but the recipe.
 */
#pragma once

#include "trainer/engine/rank_state.h"

#include <stdio.h>

/* Prints the table of memory by part, and its terms. BAD_RECIPE and the like as a run would say them. */
MUST_USE enum status dry_run(const struct run *run, FILE *to);

/* The table alone, for a run that begins. */
MUST_USE enum status dry_run_table(const struct run *run, FILE *to);
