// SPDX-License-Identifier: Apache-2.0
/* Runs whose schedule a plan builds: `pipeline.schedule: auto` with `pipeline.auto_times: plan`.
 *
 *   tapes of one and two layers ── profile ──> F, I, W of each stage, a message ── search ──> schedule
 *                                     └── memory of the device ── fewer microbatches at once ──┘
 *
 * The search knows neither the messages of data parallelism nor the memory that a fused B saves, so the named
 * schedules of the same size are planned, too:
 *
 *   named schedules ── memory formula ──> lower bound of the step ── shortest first ──> plan ──> the shortest
 *
 * A named schedule is planned only if its bound (sweep_bound.h) is below the shortest plan so far.
 *
 * The result is a function of recipe, profile and number of ranks, and thus the same on every rank. */
#pragma once

#include "planner/plan/memory_plan.h"
#include "planner/profile/profile.h"

/* run_create() without data, for any recipe. Without a memory limit in the recipe, the search of a schedule
 * has none if its schedule fits; else the largest limit with which it fits, or the smallest possible one. No
 * named schedule that fits has a shorter plan, except for those that hold weights twice. If layers differ in
 * their formats or windows, their times are unknown, and all stages are assumed to be equal. */
MUST_USE enum status planned_run_create(const struct recipe *recipe, struct run *out);

/* What a run that trains gets of its plan: the schedule of `run`, and on a GPU the needs of its ranks (NULL
 * otherwise). */
struct planned_run {
    struct run run; // without data
    struct memory_need *needs;
};

/* Plans all ranks (-1), or one. On OK, call planned_run_free(). */
MUST_USE enum status planned_run_make(const struct recipe *recipe, int rank, struct planned_run *out);
void planned_run_free(struct planned_run *planned);

/* ---- choose_schedule_named.c ---- */

/* Replaces run->schedule by the named schedule with the shortest predicted step that fits, if its step is
 * shorter or run->schedule does not fit. Schedules that hold weights twice are not considered. A run that
 * cannot be planned keeps its schedule. NO_MEMORY. */
MUST_USE enum status choose_named(struct run *run, const struct cluster_profile *profile);
/* Replaces run->schedule by `other` if its planned step is shorter, or only it fits; destroys the one that is
 * not kept. A run that cannot be planned keeps its schedule. NO_MEMORY. */
MUST_USE enum status choose_shorter(struct run *run, const struct cluster_profile *profile,
                                    struct schedule *other);
