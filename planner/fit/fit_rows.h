// SPDX-License-Identifier: Apache-2.0
/* The rows of a fit, with their plans. Private to this folder. */
#pragma once

#include "planner/fit/fit.h"
#include "planner/fit/fit_paths.h"

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
/* The time according to the paths (fit_paths.h). */
double fit_row_path_s(struct fit_row *row, const struct cluster_profile *profile);
