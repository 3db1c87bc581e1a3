// SPDX-License-Identifier: Apache-2.0
/* Activation offload (2101.06840, vDNN 1602.08124): activations move to host memory after their forward and
 * return just before their backward; another microbatch uses their slot in between. Each tensor thus has two
 * lifetimes on the device, with a slot each. 1F1B, the first of four ranks:
 *
 *     0F0  0F1  0F2  0F3  0B0 ...     microbatch 0: slot 0 from 0F0 to 0F1, and another slot from 0F3 on
 *
 * A transfer to the host overlaps the next action, and a transfer from the host the previous one. The first
 * lifetime therefore ends with the action after F (and not before its output was sent, or read by the next
 * stage on this rank), and the second starts with the action before I or B. Tensors without an action in
 * between stay on the device. */
#pragma once

#include "schedules/peak.h"

/* The lifetimes that are offloaded: what F reads and writes. */
enum { OFFLOAD_LIFETIMES = KEEP_UNTIL_BACKWARD_WEIGHT + 1 };

struct offload_plan {
    int m, chunks;
    int *reload_at; // [chunks][m] index in the list of the action before which the transfer back starts; -1:
                    // not offloaded
    int *slot[OFFLOAD_LIFETIMES]; // [chunks][2][m] in the first and second lifetime; equal if not offloaded
    int *peak[OFFLOAD_LIFETIMES]; // [chunks] slots of the chunk
    bool any;                     // true if anything is offloaded
};

/* Creates the plan of `rank` for a schedule with transfers. */
MUST_USE enum status offload_plan_create(const struct schedule *schedule, int rank,
                                         struct offload_plan **out);
void offload_plan_destroy(struct offload_plan *plan);
/* Invariants; BAD_SCHEDULE names the violated one: a tensor that exists has a slot below the peak in both
 * lifetimes, a tensor that is not offloaded the same one; a transfer back starts after the first lifetime
 * has ended and before the action that reads it; and no slot has two tensors at once. */
MUST_USE enum status offload_plan_check(const struct offload_plan *plan, const struct schedule *schedule,
                                        int rank);

static inline int offload_slot(const struct offload_plan *plan, enum lifetime lifetime, int chunk,
                               int microbatch, bool back)
{
    return plan->slot[lifetime][(2 * chunk + back) * plan->m + microbatch];
}
