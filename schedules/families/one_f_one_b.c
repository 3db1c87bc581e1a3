// SPDX-License-Identifier: Apache-2.0
/* 1F1B (PipeDream-Flush, 2006.09503; the default of Narayanan et al., 2104.04473): fill the pipeline, then
 * alternate one forward and one backward, then drain. The bubble of GPipe, with activation memory for a full
 * pipeline instead of a whole step.
 *
 *     rank 0:  F0 F1 . B0 F2 B1 F3 B2 . B3      bubble (p-1)(f+i+w), peak min(p-s, m)
 *     rank 1:  . F0 B0 F1 B1 F2 B2 F3 B3 */
#include "schedules/families/family.h"

static void one_f_one_b(struct schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++) {
        int ahead = s->stages - 1 - stage;
        for (int k = 0; k < s->m + ahead; k++) {
            if (k < s->m)
                schedule_add(s, FORWARD, stage, k);
            if (k >= ahead)
                schedule_add(s, BACKWARD, stage, k - ahead);
        }
    }
}

static int one_f_one_b_peak(const struct schedule *s, int rank)
{
    return s->p - rank < s->m ? s->p - rank : s->m;
}

const struct family family_1f1b = {
    .about = {.name = "1f1b",
              .summary = "Fill the pipeline, then alternate one forward and one backward, then drain.",
              .supports = "any p, any m, v = 1"},
    .placement = PLACE_LOOPED,
    .default_v = 1,
    .restriction = restriction_one_chunk,
    .generate = one_f_one_b,
    .peak_claim = one_f_one_b_peak,
};
