// SPDX-License-Identifier: Apache-2.0
/* Short runs to measure a step: each is `cuboid train` in a child process, on random tokens (data.mock_data).
 * A run that does not end is killed with all its processes; if this program is killed, so is the run. Results
 * are recorded in a journal (journal.h); what it contains is not run again. */
#pragma once

#include "tools/cli/measure/journal.h"
#include "trainer/recipe/recipe.h"

struct measure_options {
    const char *dir;    // contains the journal, the logs and the run directories
    const char *launch; // "mpirun -np {ranks}"; NULL: ranks are threads
    int64_t steps;
    double timeout_s; // per run
};

struct measure {
    struct measure_options options;
    struct journal journal;
    char *program; // this executable
};

/* Creates the folder and opens the journal. `head` identifies what is measured; the options are appended.
 * IO_ERROR; BAD_USAGE as journal_open(). */
MUST_USE enum status measure_open(const struct measure_options *options, const char *head,
                                  struct measure *out);
void measure_close(struct measure *measure);

struct measure_request {
    const char *name;                     // key in the journal
    int64_t number;                       // names the log and the run directory
    const char *path;                     // recipe file
    const struct recipe_names *overrides; // of the recipe file
    const struct recipe *recipe;          // loaded with these overrides
};

/* Runs the request, unless the journal has its result. */
MUST_USE enum status measure_run(struct measure *measure, const struct measure_request *request,
                                 struct journal_entry *out);

/* For a run that another program starts: appends its command, without a launcher, as words of a shell. */
void measure_command(const struct measure *measure, const struct measure_request *request, struct text *out);
/* Records the result of such a run, whose output is in DIR/logs/NUMBER. exit: its status, 124 after
 * the timeout. */
MUST_USE enum status measure_record(struct measure *measure, const struct measure_request *request, int exit,
                                    struct journal_entry *out);

/* Prints the path of a run's log and its last non-empty line, which is usually the reason for a failure. */
void measure_print_log(const struct measure *measure, int64_t number);

/* ---- one process: measure_process.c ---- */

/* The state of a run that has ended. */
enum run_state measure_state(int exit, const char *log);

/* Runs argv, terminated by NULL, with its output in the file `log`. RUN_DONE: exit status 0. */
MUST_USE enum status measure_process(char *const *argv, const char *log, double timeout_s, bool is_launcher,
                                     enum run_state *out);
