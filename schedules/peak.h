// SPDX-License-Identifier: Apache-2.0
/* Slots for a rank's activations and gradients. Each tensor has a lifetime in the rank's list, from the
 * action that produces (or receives) it to the last one that reads it. The slot plan assigns a slot to each
 * microbatch's tensor and determines the number of slots. 1F1B, the first of two ranks: two alternating
 * slots.
 *
 *     0F0 0F1 0B0 0F2 0B1 0B2        UNTIL_WEIGHT: microbatches 0 1 2 use slots 0 1 0
 *
 * Slots are assigned in list order, the lowest free one first, so the plan is a pure function of the
 * schedule. There are two numberings: within each chunk, whose tensors have the same size, and over all
 * chunks of the rank, which needs fewer slots if chunks are alike.
 *
 * Caution: transfers are asynchronous. A RECV may start to fill its slot, and a SEND may still read its own,
 * while an earlier or later action of the list computes. Their lifetimes are therefore extended by `slack`
 * computing actions at that end. With slack 0 the executor must wait for each transfer at its position in the
 * list. */
#pragma once

#include "schedules/schedule.h"

enum slot_class {
    UNTIL_INPUT,        // the stage's input: from RECV_ACTIVATION (from F if produced on this rank: its own F
                        // in stage 0, else that of the previous stage) to I or B
    UNTIL_WEIGHT,       // the same to W or B
    STASH_UNTIL_INPUT,  // activations inside the stage: from F to I or B
    STASH_UNTIL_WEIGHT, // the same to W or B; the families' memory claims refer to this class
    INPUT_TO_WEIGHT,    // written by I for W; a B uses one while it runs
    GRADIENT_IN,        // the output's gradient: from RECV_GRADIENT (I or B of the next stage if on this
                        // rank; I or B itself in the last stage) to I or B
    ACTIVATION_OUT,     // the stage's output if it is sent: from F to SEND_ACTIVATION
    GRADIENT_OUT,       // the input's gradient if it is sent: from I or B to SEND_GRADIENT
    SLOT_CLASS_COUNT
};

/* Lifetime of a tensor: from action `begin` to action `end` of the list, inclusive. */
struct slot_lifetime {
    int begin, end; // begin < 0: does not exist on this rank
    int tensor;     // chunk·m + microbatch
};
struct slot_lifetimes {
    struct slot_lifetime *of[SLOT_CLASS_COUNT]; // [chunks·m]
};
MUST_USE enum status slot_lifetimes_create(const struct schedule *schedule, int rank, int slack,
                                           struct slot_lifetimes *out);
void slot_lifetimes_destroy(struct slot_lifetimes *lifetimes);

/* Assigns slot[lifetime.tensor] to `count` lifetimes in order of their begin, the lowest free slot to each,
 * and returns the number of slots. Sorts `lifetimes`; `scratch` has room for a copy of them, `used` one
 * flag each. */
int slots_assign(struct slot_lifetime *lifetimes, int count, struct slot_lifetime *scratch, bool *used,
                 int *slot);

struct slot_plan {
    int m, chunks;
    int *slot[SLOT_CLASS_COUNT];      // [chunks][m] within the chunk; -1: does not exist on this rank
    int *rank_slot[SLOT_CLASS_COUNT]; // [chunks][m] over all chunks
    int *peak[SLOT_CLASS_COUNT];      // [chunks] slots of the chunk
    int rank_peak[SLOT_CLASS_COUNT];  // slots of all chunks together
};

/* Creates the plan of `rank` for a schedule with transfers. */
MUST_USE enum status slot_plan_create(const struct schedule *schedule, int rank, int slack,
                                      struct slot_plan **out);
void slot_plan_destroy(struct slot_plan *plan);

/* Returns the slot, within its chunk, of the tensor of `chunk` and `microbatch`. */
static inline int slot_of(const struct slot_plan *plan, enum slot_class class, int chunk, int microbatch)
{
    return plan->slot[class][(size_t)chunk * (size_t)plan->m + (size_t)microbatch];
}
