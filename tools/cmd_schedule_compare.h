// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedules/simulate.h"

/* All families that take p, m and v on one clock, the shortest first, and why the others do not. `whole`:
 * what F, I and W of all of a rank's chunks take together, so a chunk takes 1/v of it; v 0, or one that a
 * family does not take: the family's own. `memory_limit` is that of auto, in whole microbatches; 0: none. */
struct comparison {
    int p, m, v;
    struct cost_table whole;
    double memory_limit;
    bool json;
};
MUST_USE enum status compare_schedules(const struct comparison *comparison);
