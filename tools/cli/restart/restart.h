// SPDX-License-Identifier: Apache-2.0
/* A supervisor: runs `cuboid train` as a child process, perhaps under a launcher, and starts it again after a
 * failure. The run then resumes from its newest complete checkpoint.
 *
 *     attempt ── failure: step, message, rank ──> restarts.jsonl ──> the next attempt
 *
 * Before each attempt with a launcher, a process of each node checks it (cuboid doctor --check). Nodes that
 * fail are left out (srun --exclude); if too few remain, resilience.elastic trains with fewer data-parallel
 * ranks.
 *
 * It ends when the run does, when it is stopped on request, when its recipe is invalid, after two failures in
 * a row at one step with the same message, and after the last restart. */
#pragma once

#include "planner/choose/choose.h"

/* The last word of the command of an attempt. */
#define SUPERVISED "--supervised"

/* cuboid train with the options --restarts and --launch. argv[0] is "train". Returns the exit status. */
int restart_command(int argc, char **argv);

/* ---- one attempt: restart_attempt.c ---- */

struct attempt {
    int exit;        // exit status; 128 + number of the signal that killed it
    bool stopped;    // a stop was requested, and forwarded
    bool late;       // it was ended after the time limit
    struct text why; // the message of a failure
    struct text who; // "rank 5, node b", as far as it is known
    double seconds;
};
void attempt_free(struct attempt *attempt);

struct attempt_options {
    const char *command;
    bool quiet;     // its errors are read, and not copied to standard error
    double limit_s; // time limit; 0: none
    const char
        *slurm_job; // number of the Slurm job whose tasks get stop_signal; NULL: the command gets signals
    const char *stop_signal;                          // "TERM"
    void (*on_line)(void *context, const char *line); // called with each line of its errors; NULL: none
    void *context;
};

/* Runs the command in a shell, and copies its errors to standard error. SIGTERM, SIGINT and SIGHUP are
 * forwarded to it. Returns when it has ended, and all processes that write to its standard error; those that
 * remain after some seconds are killed. */
MUST_USE enum status attempt_run(const struct attempt_options *options, struct attempt *out);

/* ---- failures: restart_log.c ---- */

struct failure {
    int64_t step;  // last completed step; 0: none
    int64_t saved; // step of the newest complete checkpoint; 0: none
    struct text why, who;
};
void failure_free(struct failure *failure);

/* The state of metrics.jsonl before an attempt: one that fails while it starts does not change it. */
struct metrics_state {
    uint64_t file;
    int64_t bytes, changed_ns;
};
struct metrics_state metrics_state_of(const struct recipe *recipe);

/* Collects what the run directory and the output tell about a failed attempt. before: it began so; an attempt
 * that has completed no step has lost none. */
void failure_find(const struct recipe *recipe, const struct attempt *attempt,
                  const struct metrics_state *before, struct failure *out);

/* Whether step and message are equal, ignoring numbers in the message. */
bool failure_equal(const struct failure *a, const struct failure *b);

/* Appends a line to RUN_DIR/restarts.jsonl, and creates the folder if the run has not. IO_ERROR. */
MUST_USE enum status failure_log(const struct recipe *recipe, const struct failure *failure, int64_t restart,
                                 int exit);

/* Productive time: the sum of step_time_s of the steps after `after` in metrics.jsonl, which has each step
 * once. *last: the last step. */
double productive_s(const char *run_dir, int64_t after, int64_t *last);

/* ---- nodes: restart_nodes.c ---- */

/* The nodes on which the ranks can be started. */
struct nodes {
    int per_node;                // ranks on each
    int needed;                  // by the layout of the recipe
    int count;                   // that have passed the check; without a check, those of the job
    struct recipe_names present; // those of the Slurm job; empty outside of one
    struct recipe_names failed;
    struct text why; // "n2: memory FAILED: ...", for each that has failed
};
void nodes_free(struct nodes *nodes);

/* Appends the launcher's command with its numbers; srun does not use the nodes in `without`. */
void nodes_launch(const char *launch, int nodes, int ranks, const struct recipe_names *without,
                  struct text *out);

/* How attempts are started. */
struct start {
    const struct recipe *recipe;
    const char *path;                     // recipe file
    const struct recipe_names *overrides; // "key=value"
    const char *launch;                   // "srun -N {nodes} -n {ranks}"; NULL: threads
    const char *program;                  // path of this executable
    const char *slurm_job;                // number of the job in which srun starts the ranks; NULL: none
    bool check;                           // the nodes
};

/* Finds the nodes, and checks each with cuboid doctor --check. *attempt: the check itself, if it could not
 * be started, or a stop was requested. IO_ERROR if nodes have failed that cannot be left out; STOPPED if no
 * node of the job has answered; BAD_RECIPE. */
MUST_USE enum status nodes_find(const struct start *start, struct nodes *out, struct attempt *attempt);

/* ---- the layout of an attempt: restart_layout.c ---- */

struct layout {
    int nodes, ranks, dp;
    struct chosen chosen; // overrides of the recipe; without any if it is unchanged
};
void layout_free(struct layout *layout);

/* Fits the layout to the nodes: that of the recipe, or with resilience.elastic the one with the most
 * data-parallel ranks, of those that keep train.global_batch_size. IO_ERROR if there are too few nodes. */
MUST_USE enum status layout_make(const struct start *start, const struct nodes *nodes, struct layout *out);
