// SPDX-License-Identifier: Apache-2.0
/* The bottlenecks of a plan: the largest parts of the step, and the memory of the device. */
#pragma once

#include "planner/plan/step_plan.h"

struct plan_limit {
    const char *name; // "compute" (matmuls and attention), "bubble", "zero", ...; "memory"
    double fraction;  // of the step, mean over the pipeline ranks; "memory": needed / available on a device
};

enum { MAX_LIMITS = COST_CLASSES + PREDICT_GROUPS + 3 };

/* Lists the largest part of the step and all others of at least LIMIT_MIN_FRACTION of it, largest first.
 * Memory comes first if it does not fit, and last if at least LIMIT_MIN_MEMORY of the device's is needed.
 * Returns the length of the list. Requires a prediction. */
#define LIMIT_MIN_FRACTION 0.05
#define LIMIT_MIN_MEMORY   0.9
int plan_limits(const struct step_plan *plan, struct plan_limit out[MAX_LIMITS]);

void plan_limits_print(const struct step_plan *plan, FILE *to);        // one line
void plan_limits_json(const struct step_plan *plan, struct text *out); // a list of objects
