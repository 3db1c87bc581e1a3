// SPDX-License-Identifier: Apache-2.0
/* GPipe (Huang et al., 1811.06965): all forwards, then all backwards. The simplest schedule and the largest
 * memory: the activations of all microbatches are held between them.
 *
 *     rank 0:  F0 F1 F2 F3 . . B0 B1 B2 B3      bubble (p-1)(f+i+w), peak m
 *     rank 1:  . F0 F1 F2 F3 B0 B1 B2 B3
 *
 * The backwards run in the order of the forwards, not in reverse, so that gradients are accumulated in
 * microbatch order as in every other family; makespan and peak are equal either way. */
#include "schedules/families/family.h"

static void gpipe(struct schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++) {
        for (int k = 0; k < s->m; k++)
            schedule_add(s, FORWARD, stage, k);
        for (int k = 0; k < s->m; k++)
            schedule_add(s, BACKWARD, stage, k);
    }
}

static int gpipe_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return s->m;
}

const struct family family_gpipe = {
    .about = {.name = "gpipe",
              .summary = "All forwards, then all backwards.",
              .supports = "any p, any m, v = 1"},
    .placement = PLACE_LOOPED,
    .default_v = 1,
    .restriction = restriction_one_chunk,
    .generate = gpipe,
    .peak_claim = gpipe_peak,
};
