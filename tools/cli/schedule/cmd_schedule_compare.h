// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedules/simulate.h"

/* Prints all families that support p, m and v, the shortest first, and the reason why others do not. v 0,
 * or one that a family does not support: its default; auto uses the best of 1, 2 and v. `memory_limit`
 * applies to auto, in whole microbatches; 0: none. */
struct comparison {
    int p, m, v;
    struct cost_table whole;
    double memory_limit;
    bool json;
};
MUST_USE enum status compare_schedules(const struct comparison *comparison);
