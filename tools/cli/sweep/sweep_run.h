// SPDX-License-Identifier: Apache-2.0
/* Runs the best layouts of a sweep, one after the other, each as `cuboid train` in a child process, on a
 * dataset of random tokens. A run that does not end is killed with all its processes; if the sweep itself is
 * killed, so is the run. What has been measured is in the journal (sweep_journal.h), and is not run again. */
#pragma once

#include "tools/cli/sweep/sweep_journal.h"
#include "trainer/plan/sweep/sweep.h"

struct sweep_run_options {
    int64_t count;      // the best so many layouts; 0: all that were planned
    const char *dir;    // of the journal, the dataset and the run folders
    const char *launch; // "mpirun -np {ranks}"; NULL: ranks are threads
    int64_t steps;
    double timeout_s;             // of a run
    const char *const *overrides; // of the base recipe
    size_t override_count;
};

/* Runs them, and prints the table. *done: measured layouts. */
MUST_USE enum status sweep_run(const struct sweep *sweep, const struct sweep_run_options *options,
                               int64_t *done);

/* ---- one process: sweep_process.c ---- */

/* Runs argv, which ends with NULL, with its output in `log`. RUN_DONE: exit status 0. */
MUST_USE enum status sweep_process(char *const *argv, const char *log, double timeout_s, bool is_launcher,
                                   enum run_state *out);
