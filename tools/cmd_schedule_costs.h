// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedules/simulate.h"

/* "f=1,i=1,w=1,comm=0", and any part of it; NULL: these. BAD_USAGE names the part that is wrong. */
MUST_USE enum status parse_costs(const char *text, struct cost_table *out);

/* What one of v equal parts takes. */
struct stage_cost cost_of_part(struct stage_cost whole, int v);
