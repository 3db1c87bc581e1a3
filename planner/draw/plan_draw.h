// SPDX-License-Identifier: Apache-2.0
/* A planned step as a picture or a trace: the lanes of every pipeline rank, with their actions and messages
 * (schedules/draw/draw_lanes.h). */
#pragma once

#include "planner/plan/step_plan.h"

/* Appends the contents of the file. name: of the recipe. Requires a plan with a timeline. */
void plan_draw_svg(const struct step_plan *plan, const char *name, struct text *out);
void plan_draw_trace(const struct step_plan *plan, const char *name, struct text *out);
