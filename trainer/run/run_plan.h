// SPDX-License-Identifier: Apache-2.0
/* The plan of a run with cluster.profile: made before the first step, stored as plan.json in the run folder,
 * and compared with what was measured at the end. */
#pragma once

#include "trainer/plan/advice/advice.h"

/* What the plan predicts; zeros without a profile. */
struct run_plan {
    double step_s;
    double bubble_fraction;
    int64_t memory_peak_bytes;
    double error_fraction; // of the profile's fit; 0: unknown
};

/* Plans the run and writes plan.json. A profile of another kind of device than cluster.device has no plan: a
 * warning, and so is a step that is too long to be predicted. BAD_RECIPE if the run needs more memory than
 * the profile's device has, with the changes for which it does not. source: what the recipe was loaded
 * from. */
MUST_USE enum status run_plan_make(const struct run *run, const struct advice_source *source,
                                   struct run_plan *out);

/* What a run measured. */
struct run_measured {
    int64_t steps;          // without the first step of the process
    double step_s;          // their mean
    double bubble_fraction; // of the last step; NAN: unknown
    int64_t memory_peak_bytes;
};

/* Prints predicted next to measured; nothing without a plan or a measured step. */
void run_plan_compare(const struct run_plan *plan, const struct run_measured *measured, FILE *to);
