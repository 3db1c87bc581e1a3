// SPDX-License-Identifier: Apache-2.0
/* Short runs as job arrays of Slurm, one array for each number of nodes.
 *
 *     run 12 ── DIR/jobs/12.sh ── element of an array ──> DIR/logs/12, DIR/jobs/12.status: its exit status
 *
 * The state is that of Slurm's queue and of these files, so the program that waits may be killed and
 * started again at any time: it finds its arrays by their name, and the runs of each by its comment. Slurm
 * starts an element again if its node fails. While slurmctld does not answer, the runs continue, and so does
 * the wait. */
#pragma once

#include "trainer/recipe/recipe.h"

struct slurm_run {
    int64_t number;      // names its files
    struct text command; // without a launcher, as words of a shell
    int nodes, ranks_per_node;
    bool done;
    int exit;                 // 124: it took longer than the limit
    int submitted, missed;    // how often: it was submitted; it was in no queue, without a result
    bool queued, is_in_group; // at the last poll; in the array being submitted
};

struct slurm_runs {
    const char *dir;             // contains jobs/ and logs/
    const struct recipe *recipe; // partition, account and other options of all runs
    double timeout_s;            // per run
    struct slurm_run *list;      // owned, with its commands
    size_t count;
    char name[48];   // of the arrays
    double looked_s; // when the queue was last read
    bool warned;     // that it could not be read
};

/* Submits the runs that have no result and are in no queue. IO_ERROR with the words of squeue or sbatch. */
MUST_USE enum status slurm_runs_start(struct slurm_runs *runs);
/* Waits until one more run is done: *index. A run that is killed, or disappears from the queue, is submitted
 * again, up to three times in all; then it has failed. */
MUST_USE enum status slurm_runs_wait(struct slurm_runs *runs, size_t *index);
/* Cancels what is left of the arrays, and frees the runs. */
void slurm_runs_end(struct slurm_runs *runs);
