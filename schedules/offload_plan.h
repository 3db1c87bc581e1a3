// SPDX-License-Identifier: Apache-2.0
/* What a microbatch leaves behind may wait for its backward pass elsewhere (2101.06840, vDNN 1602.08124): it
 * goes away behind its forward and is back just ahead of its backward, and its slot has another user
 * meanwhile. So a thing has two lives on the rank, each with a slot of its own. 1F1B, the first of four
 * ranks:
 *
 *     0F0  0F1  0F2  0F3  0B0 ...     microbatch 0: slot 0 from 0F0 to 0F1, and some slot again from 0F3 on
 *
 * A message to the host goes on while the next action computes, and one from the host while the one before
 * does. So the first life ends with the action behind F (and not before its output was sent, or read by the
 * next stage where that is on this rank), and the second begins with the action before I or B. A thing for
 * which nothing is left between the two stays where it is. */
#pragma once

#include "schedules/peak.h"

struct offload_plan {
    int m, chunks;
    int *returns; // [chunks][m] the place in the list of the action before which it is sent for; -1: it stays
    /* UNTIL_INPUT, STASH_UNTIL_INPUT and STASH_UNTIL_WEIGHT only. */
    int *slot[SLOT_CLASS_COUNT]; // [chunks][2][m] in its first and in its second life; one where it stays
    int *peak[SLOT_CLASS_COUNT]; // [chunks] slots that the chunk needs
    bool any;                    // something goes away
};

/* The plan of `rank` for a schedule with transfers. */
MUST_USE enum status offload_plan_create(const struct schedule *schedule, int rank,
                                         struct offload_plan **out);
void offload_plan_destroy(struct offload_plan *plan);

static inline int offload_slot(const struct offload_plan *plan, enum slot_class class, int chunk,
                               int microbatch, bool back)
{
    return plan->slot[class][(2 * chunk + back) * plan->m + microbatch];
}
