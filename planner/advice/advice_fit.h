// SPDX-License-Identifier: Apache-2.0
/* Layouts of a recipe that needs more memory than a device has: a sweep (sweep/sweep.h) over its degrees,
 * ZeRO stage and recomputation, also with smaller microbatches and 1F1B, on the same number of ranks. */
#pragma once

#include "planner/advice/advice.h"

struct advice_items {
    struct advice_item items[ADVICE_MAX]; // fastest first
    int count;
};

/* Finds the fastest layouts that fit. A recipe that cannot be swept has none. NO_MEMORY. */
MUST_USE enum status advice_fit(const struct advice_source *source, const struct recipe *base,
                                struct advice_items *out);
