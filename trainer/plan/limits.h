// SPDX-License-Identifier: Apache-2.0
/* What bounds a plan: the parts of the step from the largest, and the memory of the device. */
#pragma once

#include "trainer/plan/step_plan.h"

struct plan_limit {
    const char *name; // "compute" (matmuls and attention), "bubble", "zero", ...; "memory"
    double fraction;  // of the step, mean of the pipeline ranks; "memory": needed, of the device's
};

enum { LIMITS_MOST = COST_CLASSES + PREDICT_GROUPS + 3 };

/* The largest part of the step, and those of at least LIMIT_LEAST of it, the largest first. Memory is first
 * where it does not fit, and last where at least MEMORY_LEAST of the device's is needed. Returns how many.
 * The plan has a prediction. */
#define LIMIT_LEAST  0.05
#define MEMORY_LEAST 0.9
int plan_limits(const struct step_plan *plan, struct plan_limit out[LIMITS_MOST]);

void plan_limits_print(const struct step_plan *plan, FILE *to);        // one line
void plan_limits_json(const struct step_plan *plan, struct text *out); // a list of objects
