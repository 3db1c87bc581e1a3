// SPDX-License-Identifier: Apache-2.0
/* Recently built schedules of a sweep. Layouts that differ in neither schedule, pipeline nor microbatches
 * share one, and layouts with similar bounds, such as those with and without ZeRO, are visited after each
 * other. */
#pragma once

#include "schedules/schedule.h"
#include "trainer/recipe/recipe.h"

enum { SWEEP_SCHEDULES = 8 };

struct sweep_schedule {
    struct schedule_options options;
    char *name; // options.name
    struct schedule *schedule;
};

struct sweep_schedules {
    struct sweep_schedule list[SWEEP_SCHEDULES]; // the last used first
    int count;
};

/* Returns the schedule of a recipe, which is valid until the next call; *out is NULL if the recipe reads it
 * from a file or searches it. Errors are those of schedule_build(). */
MUST_USE enum status sweep_schedule_of(struct sweep_schedules *schedules, const struct recipe *recipe,
                                       struct schedule **out);
void sweep_schedules_free(struct sweep_schedules *schedules);
