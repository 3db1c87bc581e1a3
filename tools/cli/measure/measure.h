// SPDX-License-Identifier: Apache-2.0
/* Short runs to measure a step: each is `cuboid train` in a child process, on random tokens (data.mock_data).
 * A run that does not end is killed with all its processes; if this program is killed, so is the run. What
 * has been measured is in a journal (journal.h), and is not run again. */
#pragma once

#include "tools/cli/measure/journal.h"
#include "trainer/recipe/recipe.h"

struct measure_options {
    const char *dir;    // of the journal, the logs and the run folders
    const char *launch; // "mpirun -np {ranks}"; NULL: ranks are threads
    int64_t steps;
    double timeout_s; // of a run
};

struct measure {
    struct measure_options options;
    struct journal journal;
    char *program; // this executable
};

/* Makes the folder and opens the journal. `head`: what is measured; the options are added. IO_ERROR;
 * BAD_USAGE as journal_open(). */
MUST_USE enum status measure_open(const struct measure_options *options, const char *head,
                                  struct measure *out);
void measure_close(struct measure *measure);

struct measure_request {
    const char *name;                     // of the journal's entry
    int64_t number;                       // of the log and the run folder
    const char *path;                     // of the recipe
    const struct recipe_names *overrides; // of it
    const struct recipe *recipe;          // with these overrides
};

/* Runs it, unless the journal has a result. */
MUST_USE enum status measure_run(struct measure *measure, const struct measure_request *request,
                                 struct journal_entry *out);

/* The log of run `number`, with its last line that is not empty: most often why it failed. */
void measure_print_log(const struct measure *measure, int64_t number);

/* ---- one process: measure_process.c ---- */

/* Runs argv, which ends with NULL, with its output in `log`. RUN_DONE: exit status 0. */
MUST_USE enum status measure_process(char *const *argv, const char *log, double timeout_s, bool is_launcher,
                                     enum run_state *out);
