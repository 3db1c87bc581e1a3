// SPDX-License-Identifier: Apache-2.0
/* The changes that advice considers. */
#pragma once

#include "planner/advice/advice.h"

enum { ADVICE_CANDIDATES = 64 };

struct advice_list {
    char changes[ADVICE_CANDIDATES][ADVICE_CHARS]; // overrides, separated by spaces
    unsigned targets[ADVICE_CANDIDATES];           // the limits that a change may reduce
    int count;
};

/* Limits that a change may reduce: parts of the step (limits.h), or memory. */
enum advice_target {
    AT_TP = 1,       // tensor-parallel messages
    AT_PP = 2,       // pipeline messages
    AT_DATA = 4,     // messages of data parallelism and ZeRO
    AT_HOST = 8,     // copies
    AT_BUBBLE = 16,  //
    AT_COMPUTE = 32, // matmuls and attention: recomputation
    AT_SMALL = 64,   // launches and memory-bound ops
    AT_MEMORY = 128  // worth combining if no single change fits
};

/* Lists changes of one key, or of two degrees with the same product. They need not be valid. Those that
 * target the largest limits of the plan come first. */
void advice_list_make(const struct step_plan *plan, struct advice_list *out);
