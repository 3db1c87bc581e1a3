// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedules/simulate.h"

/* All families that take p, m and v on one clock, the shortest first, and why the others do not. v 0, or one
 * that a family does not take: the family's own; auto has the best of 1, 2 and v. `memory_limit` is that of
 * auto, in whole microbatches; 0: none. */
struct comparison {
    int p, m, v;
    struct cost_table whole;
    double memory_limit;
    bool json;
};
MUST_USE enum status compare_schedules(const struct comparison *comparison);
