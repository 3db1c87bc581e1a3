// SPDX-License-Identifier: Apache-2.0
/* cuboid profile fit: efficiency parameters of a profile from tables of step times. */
#pragma once

#include "planner/fit/fit.h"

#include <stdio.h>

/* argv[0] is "fit". Returns an exit status. */
int profile_fit(int argc, char **argv);

enum { FIT_MAX_SOURCES = 32 };

/* Fits without some rows, and the error on those rows. */
struct fit_held_out {
    const char *sources[FIT_MAX_SOURCES]; // in the order of the rows
    int source_count;
    struct fit_error without[FIT_MAX_SOURCES]; // on source i, fitted to all others; count 0: a single source
    struct fit_error thirds[FIT_MAX_SOURCES];  // on every third row of source i, fitted to all other rows
    struct fit_error all_thirds;               // on every third row of all sources
    double *third_rows;                        // the same, of each of these rows; NULL: none
    size_t third_count;
};

/* Prints the tables of parameters and of the errors of each source. base: the errors before the fit. */
void profile_fit_print(const struct fit_rows *rows, const double *base, const struct fit_result *fitted,
                       const struct fit_held_out *held_out, FILE *to);
