// SPDX-License-Identifier: Apache-2.0
/* How long a rank keeps a tensor of one microbatch. Layers declare their activations with a lifetime
 * (layers/pass.h), a schedule determines how many slots of each lifetime a rank needs (schedules/peak.h),
 * and the engine allocates the slots (trainer/engine). F, I and W: see schedules/action.h.
 *
 * Caution: the order is that of the columns in reports and metrics. */
#pragma once

#include <stdbool.h>

enum lifetime {
    /* The slot plan assigns a slot to each microbatch. */
    KEEP_INPUT,                 // the stage's input: from its receive, or from F, to I
    KEEP_UNTIL_BACKWARD_INPUT,  // written by F, read by I: q k v of attention, inputs of norms
    KEEP_UNTIL_BACKWARD_WEIGHT, // written by F, read by W: inputs of matmuls
    KEEP_INPUT_TO_WEIGHT,       // written by I, read by W: gradients of outputs of matmuls
    PLANNED_LIFETIMES,

    /* The gradient plan assigns a buffer to each microbatch. */
    STAGE_GRADIENT =
        PLANNED_LIFETIMES, // of the stage's output, then of its input: from its receive to its send
    SLOT_LIFETIMES,

    /* One buffer per rank, within one action. */
    RECOMPUTE = SLOT_LIFETIMES, // dropped by F and recomputed by I
    SCRATCH,                    // everything else
    LIFETIME_COUNT
};

/* True for lifetimes with one buffer per rank. */
static inline bool lifetime_is_shared(enum lifetime lifetime)
{
    return lifetime == RECOMPUTE || lifetime == SCRATCH;
}

/* Name of a lifetime below SLOT_LIFETIMES in reports and metrics: "until_input". */
const char *lifetime_name(enum lifetime lifetime);
