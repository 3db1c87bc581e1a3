// SPDX-License-Identifier: Apache-2.0
/* A batch job that trains a recipe under Slurm.
 *
 *     recipe ── submit_nodes, submit_lead ──> struct submission ── submit_script ──> text ──> sbatch
 *
 * Before its time limit, and before it is preempted, the job gets a signal, saves and exits with 75. Its
 * script then requeues it, and the same command resumes from the checkpoint. */
#pragma once

#include "trainer/recipe/recipe.h"

struct submission {
    const struct recipe *recipe;
    const char *path;                     // recipe file
    const struct recipe_names *overrides; // "key=value"
    const char *program, *folder;         // path of this executable; working directory
    const char *launch;                   // "srun -n {ranks}": starts the ranks
    const char *after;                    // "123" or "afterok:123": the job to wait for; NULL: none
    int64_t requeues;                     // maximum number
    int64_t restarts;                     // within the job: train --restarts; 0: none
    const char *name, *time;              // of the job, instead of the recipe's; NULL: those of the recipe
    int nodes, ranks_per_node;
    int64_t lead_s; // time from the signal to the end of the job
};

/* Nodes and ranks per node, from cluster.nodes, cluster.gpus_per_node or both. BAD_RECIPE, with the
 * nearest valid values, if the ranks do not fill the nodes. */
MUST_USE enum status submit_nodes(const struct recipe *recipe, int *nodes, int *ranks_per_node);

/* Seconds before its end at which the job is signaled: time for the current step, the save, and Slurm's
 * coarse timer. Based on the run's own checkpoints and metrics if there are any, otherwise on the size of the
 * model. `why`: the explanation, "twice a step of 0.5 s (measured) ...". */
int64_t submit_lead(const struct recipe *recipe, int nodes, struct text *why);

/* Warns if the ranks are on GPUs, and nothing says how many CPUs each has: Slurm's default is one. */
void submit_warn_cpus(const struct submission *submission);

/* BAD_RECIPE if the job cannot be requeued: it saves no checkpoint, no signal stops it, or its time limit is
 * too short. */
MUST_USE enum status submit_check(const struct submission *submission);

/* The signal of resilience.exit_signal that stops the run, preferably SIGTERM; NULL: none. */
const char *submit_stop_signal(const struct recipe *recipe);

/* Appends the options of the job's resources, and those of cluster.sbatch. */
void submit_options(const struct submission *submission, struct text *out);
/* Appends the commands of cluster.sbatch. */
void submit_commands(const struct submission *submission, struct text *out);

/* Passes a script to sbatch, and appends the number of the job. IO_ERROR, with the words of sbatch and the
 * key at fault. */
MUST_USE enum status submit_sbatch(const char *script, struct text *job);

/* Appends the batch script. why: from submit_lead(). */
void submit_script(const struct submission *submission, const char *why, struct text *out);
