// SPDX-License-Identifier: Apache-2.0
/* The time of a step as a function of the profile, near profiles with which it was simulated:
 *
 *   simulation with a profile ── critical path ──> how often each op and message is on it
 *   another profile ── time of each op and message ──> length of each path; the longest is the step
 *
 * At a profile that was simulated, the longest path is the simulated step. Elsewhere no path is longer than
 * the step, except for ops that messages slow down: on a path, the same part of their time is slowed. Paths
 * that a simulation shows to be longer than the step are removed.
 * The ops and messages of a path are few kinds, so its length takes microseconds. */
#pragma once

#include "planner/plan/step_plan.h"

struct fit_paths;
/* The plan must outlive the paths. NO_MEMORY. */
MUST_USE enum status fit_paths_create(const struct step_plan *plan, struct fit_paths **out);
void fit_paths_destroy(struct fit_paths *paths); // takes NULL

/* Simulates the step, and adds its critical path. *seconds: the time of the step. */
MUST_USE enum status fit_paths_simulate(struct fit_paths *paths, const struct cluster_profile *profile,
                                        double *seconds);
/* The longest path; 0 before the first simulation. */
double fit_paths_seconds(const struct fit_paths *paths, const struct cluster_profile *profile);
