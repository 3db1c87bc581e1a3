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

/* cuboid train with the options --restarts and --launch. argv[0] is "train". Returns the exit status. */
int restart_command(int argc, char **argv);

/* ---- one attempt: restart_attempt.c ---- */

struct attempt {
    int exit;        // exit status; 128 + number of the signal that killed it
    bool stopped;    // a stop was requested, and forwarded
    struct text why; // the message of a failure
    double seconds;
};

/* Runs `command` in a shell, and copies its errors to standard error. SIGTERM, SIGINT and SIGHUP are
 * forwarded to it. */
MUST_USE enum status attempt_run(const char *command, struct attempt *out);

/* ---- failures: restart_log.c ---- */

struct failure {
    int64_t step;  // last completed step; 0: none
    int64_t saved; // step of the newest complete checkpoint; 0: none
    struct text why, who;
};
void failure_free(struct failure *failure);

/* Collects what the run folder and the output tell about a failed attempt. */
void failure_find(const struct recipe *recipe, const struct attempt *attempt, struct failure *out);

/* Whether step and message are equal, ignoring numbers in the message. */
bool failure_equal(const struct failure *a, const struct failure *b);

/* Appends a line to RUN_DIR/restarts.jsonl. IO_ERROR. */
MUST_USE enum status failure_log(const struct recipe *recipe, const struct failure *failure, int64_t restart,
                                 int exit);

/* Productive time: the sum of step_time_s of the steps after `after` in metrics.jsonl, which has each step
 * once. *last: the last step. */
double productive_s(const char *run_dir, int64_t after, int64_t *last);
