// SPDX-License-Identifier: Apache-2.0
/* Runs the rows of a published table, scaled down to fit this machine (planner/table/table.h):
 * planned with the profile of this machine, and measured (tools/cli/measure). Rows that become the same small
 * run are measured once. */
#pragma once

#include "planner/table/table.h"
#include "tools/cli/measure/measure.h"

/* Like table_predict(), but compares with measured values instead of printed ones. ranks: maximum per row; 0:
 * 8. BAD_USAGE without a profile of a CPU. The reason of a row says whether its run failed. */
MUST_USE enum status table_run(const struct published *published, const struct table_options *options,
                               const struct measure_options *measure, int ranks, struct table *out);
