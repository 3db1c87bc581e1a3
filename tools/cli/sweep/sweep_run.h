// SPDX-License-Identifier: Apache-2.0
/* Runs the best layouts of a sweep, one after the other (tools/cli/measure). */
#pragma once

#include "tools/cli/measure/measure.h"
#include "tools/cli/sweep/sweep_output.h"

struct sweep_run_options {
    int64_t count; // number of best layouts to run; 0: all planned ones
    struct measure_options measure;
    const char *const *overrides; // of the base recipe
    size_t override_count;
};

/* BAD_RECIPE if one of the `count` best layouts (0: of all) has assumptions: it can only be planned. */
MUST_USE enum status sweep_check_runs(const struct sweep *sweep, int64_t count);

/* Runs the layouts, and prints a table. measured: [sweep->best_count], filled for those that were run. */
MUST_USE enum status sweep_run(const struct sweep *sweep, const struct sweep_run_options *options,
                               struct sweep_measured *measured);
