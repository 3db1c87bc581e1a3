// SPDX-License-Identifier: Apache-2.0
/* A supervisor: runs `cuboid train` as a child process, perhaps under a launcher, and starts it again after a
 * failure. The run then resumes from its newest complete checkpoint.
 *
 *     attempt ── failure: step, message, rank ──> restarts.jsonl ──> the next attempt
 *
 * It ends when the run does, when it is stopped on request, when its recipe is invalid, after two failures in
 * a row at one step with the same message, and after the last restart. */
#pragma once

#include "trainer/recipe/recipe.h"

/* cuboid train with options. argv[0] is "train". Returns the exit status. */
int restart_command(int argc, char **argv);

/* ---- one attempt: restart_attempt.c ---- */

struct attempt {
    int exit;        // status; 128 + signal
    bool stopped;    // a stop was requested, and passed on
    struct text why; // the message of a failure
    double seconds;
};

/* Runs `command` in a shell, and copies its errors to standard error. SIGTERM, SIGINT and SIGHUP are
 * passed on to it. */
MUST_USE enum status attempt_run(const char *command, struct attempt *out);

/* ---- what is known of failures: restart_log.c ---- */

struct failure {
    int64_t step;  // the last that was finished; 0: none
    int64_t saved; // the newest complete checkpoint; 0: none
    struct text why, who;
};
void failure_free(struct failure *failure);

/* Of the run folder, after an attempt has failed. */
void failure_find(const struct recipe *recipe, const struct attempt *attempt, struct failure *out);

/* The same step, and the same message up to its numbers. */
bool failure_equal(const struct failure *a, const struct failure *b);

/* Appends a line to RUN_DIR/restarts.jsonl. IO_ERROR. */
MUST_USE enum status failure_log(const struct recipe *recipe, const struct failure *failure, int64_t restart,
                                 int exit);

/* The sum of step_time_s of the steps after `after` in metrics.jsonl, which has each step once: the time
 * that was not lost. *last: the last step. */
double productive_s(const char *run_dir, int64_t after, int64_t *last);
