// SPDX-License-Identifier: Apache-2.0
/* Runs the best layouts of a sweep, one after the other (tools/cli/measure). */
#pragma once

#include "tools/cli/measure/measure.h"
#include "tools/cli/sweep/sweep_output.h"

struct sweep_run_options {
    int64_t count; // the best so many layouts; 0: all that were planned
    struct measure_options measure;
    const char *const *overrides; // of the base recipe
    size_t override_count;
};

/* Runs them, and prints the table. measured: [sweep->best_count], filled for those that were run. */
MUST_USE enum status sweep_run(const struct sweep *sweep, const struct sweep_run_options *options,
                               struct sweep_measured *measured);
