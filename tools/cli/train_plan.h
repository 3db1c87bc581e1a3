// SPDX-License-Identifier: Apache-2.0
/* The plan of a run that trains: `cuboid train` asks the planner, and passes plain numbers on. */
#pragma once

#include "planner/advice/advice.h"
#include "planner/schedule/choose_schedule.h"
#include "trainer/run/run_plan.h"

struct train_plan {
    struct run_plan plan; // for train()
    struct planned_run planned;
    struct text json, why; // of `plan`
    char *report;
};

/* Plans the run, in each process for its own ranks; rank 0 also reports layout and memory, and with
 * cluster.profile predicts the step: without a prediction, and with a warning, if the profile is for another
 * kind of device than cluster.device, or if the step is too long to be predicted. plan.status is BAD_RECIPE,
 * with changes that would help, if the run needs more memory than the profile's device has. source: what the
 * recipe was loaded from. Call train_plan_free() in all cases. */
struct launcher;
void train_plan_make(const struct recipe *recipe, const struct advice_source *source,
                     const struct launcher *launcher, struct train_plan *out);
void train_plan_free(struct train_plan *plan);
