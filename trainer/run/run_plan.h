// SPDX-License-Identifier: Apache-2.0
/* What a plan knows of a run, as plain numbers: made by tools/cli, passed to train(), and compared with what
 * was measured at the end. */
#pragma once

#include "trainer/engine/memory_need.h"

/* The predictions; zeros without a profile. */
struct run_prediction {
    double step_s;
    double bubble_fraction;
    double wait_s[2]; // minimum and maximum over ranks: bubble and exposed messages
    int64_t memory_peak_bytes;
    int64_t part_bytes[PART_COUNT]; // maximum over ranks, per part
    double error_fraction;          // of the profile's fit; 0: unknown
};

/* All zeros: no plan. */
struct run_plan {
    enum status status;              // not OK: the plan failed, which train() reports on every rank ...
    const char *why;                 // ... for this reason
    struct schedule *schedule;       // of pipeline.auto_times=plan; NULL: the run builds its own
    const struct memory_need *needs; // [world], of the ranks of this process; NULL: no pool is reserved
    struct run_prediction predicted;
    const char *json;   // plan.json of the run directory; NULL: none
    const char *report; // layout and memory, printed before the first step; NULL: none
};

/* Measurements of a run. */
struct run_measured {
    int64_t steps;          // without the first step of the process
    double step_s;          // mean over these steps
    double bubble_fraction; // of the last step; NAN: unknown
    double wait_s[2];       // means over these steps of minimum and maximum over ranks; NAN: unknown
    int64_t memory_peak_bytes;
    int64_t part_peak_bytes[PART_COUNT]; // maximum over ranks, per part
};

/* Writes plan.json, if the plan has one. IO_ERROR. */
MUST_USE enum status run_plan_write(const struct run_plan *plan, const char *run_dir);

/* Prints predicted next to measured values; nothing without a prediction or a measured step. */
void run_plan_compare(const struct run_prediction *predicted, const struct run_measured *measured, FILE *to);
