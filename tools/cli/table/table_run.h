// SPDX-License-Identifier: Apache-2.0
/* The rows of a published table for real, at a scale that fits this machine
 * (trainer/plan/table/table_scale.h): planned on the profile of this machine, and measured
 * (tools/cli/measure). Rows that become the same small run are measured once. */
#pragma once

#include "tools/cli/measure/measure.h"
#include "trainer/plan/table/table.h"

/* ranks: at most so many per row; 0: 8. As table_predict(), with what was measured instead of what is
 * printed. BAD_USAGE without a profile, or with one of GPUs on a machine without; a run that fails is the
 * reason of its row. */
MUST_USE enum status table_run(const struct published *published, const struct table_options *options,
                               const struct measure_options *measure, int ranks, struct table *out);
