// SPDX-License-Identifier: Apache-2.0
/* The plan of a run with cluster.profile: made before the first step, stored as plan.json in the run
 * directory, and compared with what was measured at the end. */
#pragma once

#include "planner/advice/advice.h"

/* The predictions; zeros without a profile. */
struct run_plan {
    double step_s;
    double bubble_fraction;
    double wait_s[2]; // minimum and maximum over ranks: bubble and exposed messages
    int64_t memory_peak_bytes;
    int64_t part_bytes[PART_COUNT]; // maximum over ranks, per part
    double error_fraction;          // of the profile's fit; 0: unknown
};

/* Plans the run and writes plan.json. Without a plan, and with a warning, if the profile is for another kind
 * of device than cluster.device, or if the step is too long to be predicted. BAD_RECIPE, with changes that
 * would help, if the run needs more memory than the profile's device has. source: what the recipe was loaded
 * from. */
MUST_USE enum status run_plan_make(const struct run *run, const struct advice_source *source,
                                   struct run_plan *out);

/* Measurements of a run. */
struct run_measured {
    int64_t steps;          // without the first step of the process
    double step_s;          // mean over these steps
    double bubble_fraction; // of the last step; NAN: unknown
    double wait_s[2];       // means over these steps of minimum and maximum over ranks; NAN: unknown
    int64_t memory_peak_bytes;
    int64_t part_peak_bytes[PART_COUNT]; // maximum over ranks, per part
};

/* Prints predicted next to measured values; nothing without a plan or a measured step. */
void run_plan_compare(const struct run_plan *plan, const struct run_measured *measured, FILE *to);
