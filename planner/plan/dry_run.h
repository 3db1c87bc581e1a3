// SPDX-License-Identifier: Apache-2.0
/* Dry run: the real program on a device that computes nothing. One rank of each pipeline coordinate is
 * created and runs one step; its allocations are those of a run (memory_plan.h). Reads only the recipe. */
#pragma once

#include "trainer/engine/rank.h"

#include <stdio.h>

/* Prints the table of memory by part, at the start of a run. Returns the errors that a run would return
 * (BAD_RECIPE, ...). */
MUST_USE enum status dry_run_table(const struct run *run, FILE *to);
