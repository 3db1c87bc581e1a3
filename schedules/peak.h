// SPDX-License-Identifier: Apache-2.0
/* Slots for a rank's activations. Each tensor has a lifetime in the rank's list, from the action that
 * produces (or receives) it to the last one that reads it (lifetime.h). The slot plan assigns a slot
 * to each microbatch's tensor and determines the number of slots. 1F1B, the first of two ranks: two
 * alternating slots.
 *
 *     0F0 0F1 0B0 0F2 0B1 0B2        KEEP_UNTIL_BACKWARD_WEIGHT: 0 1 2 use slots 0 1 0
 *
 * Slots are assigned in list order, the lowest free one first, within each chunk, whose tensors have the same
 * size. So the plan is a pure function of the schedule.
 *
 * Caution: transfers are asynchronous. A message may still read a slot after its last reader in the list;
 * the engine orders it with events. */
#pragma once

#include "schedules/lifetime.h"
#include "schedules/schedule.h"

/* Lifetime of a tensor: from action `begin` to action `end` of the list, inclusive. */
struct slot_lifetime {
    int begin, end; // begin < 0: does not exist on this rank
    int tensor;     // chunk·m + microbatch
};
struct slot_lifetimes {
    struct slot_lifetime *of[PLANNED_LIFETIMES]; // [chunks·m]
};
void slot_lifetimes_create(const struct schedule *schedule, int rank, struct slot_lifetimes *out);
void slot_lifetimes_destroy(struct slot_lifetimes *lifetimes);

/* Assigns slot[lifetime.tensor] to `count` lifetimes in order of their begin, the lowest free slot to each,
 * and returns the number of slots. Sorts `lifetimes`; `scratch` has room for a copy of them, `used` one
 * flag each. */
int slots_assign(struct slot_lifetime *lifetimes, int count, struct slot_lifetime *scratch, bool *used,
                 int *slot);

struct slot_plan {
    int m, chunks;
    int *slot[PLANNED_LIFETIMES]; // [chunks][m] within the chunk; -1: does not exist on this rank
    int *peak[PLANNED_LIFETIMES]; // [chunks] slots of the chunk
};

/* Creates the plan of `rank` for a schedule with transfers. */
struct slot_plan *slot_plan_create(const struct schedule *schedule, int rank);
void slot_plan_destroy(struct slot_plan *plan);

/* Returns the slot, within its chunk, of the tensor of `chunk` and `microbatch`. */
static inline int slot_of(const struct slot_plan *plan, enum lifetime lifetime, int chunk, int microbatch)
{
    return plan->slot[lifetime][(size_t)chunk * (size_t)plan->m + (size_t)microbatch];
}
