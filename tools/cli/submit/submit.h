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
    const char *path;                     // of the recipe
    const struct recipe_names *overrides; // "key=value"
    const char *program, *folder;         // of this executable; the working directory
    const char *launch;                   // "srun -n {ranks}": starts the ranks
    const char *after; // "123" or "afterok:123": starts when that job has ended; NULL: none
    int64_t requeues;  // limit
    int nodes, ranks_per_node;
    int64_t lead_s; // from the signal to the end
};

/* Nodes and ranks per node, from cluster.nodes, cluster.gpus_per_node or both. BAD_RECIPE names the nearest
 * values that the layout fills. */
MUST_USE enum status submit_nodes(const struct recipe *recipe, int *nodes, int *ranks_per_node);

/* How long before its end the job is signaled: time for the running step, the save, and Slurm's coarse clock.
 * From the run's own checkpoints and metrics if there are some, otherwise from the size of the model. `why`:
 * "a save of 12 s, measured, ...". */
int64_t submit_lead(const struct recipe *recipe, int nodes, struct text *why);

/* BAD_RECIPE if the job cannot be requeued: it saves nothing, has no signal, or no time for it. */
MUST_USE enum status submit_check(const struct submission *submission);

/* The batch script. why: that of submit_lead(). */
void submit_script(const struct submission *submission, const char *why, struct text *out);
