// SPDX-License-Identifier: Apache-2.0
/* The rows of a fit, with their plans. Private to this folder. */
#pragma once

#include "planner/fit/fit.h"
#include "planner/plan/step_plan.h"

/* ---- fit_paths.c ---- */

/* The time of a step as a function of the profile, near profiles with which it was simulated:
 *
 *   simulation with a profile ── critical path ──> how often each op and message is on it
 *   another profile ── time of each op and message ──> length of each path; the longest is the step
 *
 * At a profile that was simulated, the longest path is the simulated step. Elsewhere no path is longer than
 * the step, except for ops that messages slow down: on a path, the same part of their time is slowed. Paths
 * that a simulation shows to be longer than the step are removed.
 * The ops and messages of a path are few kinds, so its length takes microseconds. */

struct fit_paths;
/* The plan must outlive the paths. */
struct fit_paths *fit_paths_create(const struct step_plan *plan);
void fit_paths_destroy(struct fit_paths *paths); // takes NULL

/* Simulates the step, and adds its critical path. *seconds: the time of the step. */
MUST_USE enum status fit_paths_simulate(struct fit_paths *paths, const struct cluster_profile *profile,
                                        double *seconds);
/* The longest path; 0 before the first simulation. */
double fit_paths_seconds(const struct fit_paths *paths, const struct cluster_profile *profile);

/* ---- fit_rows.c ---- */

/* The plan of a recipe, whose tapes are predicted repeatedly. */
struct planned {
    struct recipe *recipe; // NULL: no plan
    struct run run;
    struct step_plan plan;
    struct fit_paths *paths;
    bool made;
};

struct fit_row {
    const struct published_row *row;
    const struct published *table;
    int cluster;
    double printed_s;
    struct planned whole, longer; // longer: with one more layer, of rows that print the time of a layer
    struct profile_model last;    // the last profile of fit_row_path_s(), and its result
    double last_s;
    bool has_path; // fit_row_simulate() has been called
};

struct fit_cluster {
    const char *name; // of the profile
    struct cluster_profile *profile;
};

struct fit_rows {
    struct fit_row *list;
    size_t count, left_out;
    struct fit_cluster *clusters;
    int cluster_count;
};

/* The predicted time; NAN if memory is exhausted. */
double fit_row_seconds(const struct fit_row *row, const struct cluster_profile *profile);
/* The same, and adds the critical path. */
double fit_row_simulate(struct fit_row *row, const struct cluster_profile *profile);
/* The time according to the paths (fit_rows.h). */
double fit_row_path_s(struct fit_row *row, const struct cluster_profile *profile);
