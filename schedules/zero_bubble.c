// SPDX-License-Identifier: Apache-2.0
/* ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2401.10241): 1F1B with the backward cut in two.
 * The stage before waits only for I; W can fill what would be a bubble. Rank s runs 1F1B's forwards and
 * I, and each W s microbatches late: no later than memory allows, since a microbatch's activations stay
 * until its W, and p-s of them in front of I and s behind it make p on every rank, the peak of 1F1B.
 *
 *     rank 0:  F0 F1 . I0 W0 F2 I1 W1 F3 I2 W2 I3 W3       bubble (p-1)(f+i-w) for m >= p
 *     rank 1:  . F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3       peak min(p, m) */
#include "schedules/family.h"

static void zb_h1(struct schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++) {
        int ahead = s->stages - 1 - stage, late = stage;
        for (int k = 0; k < s->m + ahead + late; k++) {
            int back = k - ahead, weight = k - ahead - late;
            if (k < s->m)
                schedule_add(s, FORWARD, stage, k);
            if (back >= 0 && back < s->m)
                schedule_add(s, BACKWARD_INPUT, stage, back);
            if (weight >= 0)
                schedule_add(s, BACKWARD_WEIGHT, stage, weight);
        }
    }
}

static int zb_h1_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return s->p < s->m ? s->p : s->m;
}

const struct family family_zb_h1 = {
    .about = {.name = "zb-h1",
              .idea = "1F1B whose weight gradients fill the bubble, with 1F1B's memory.",
              .takes = "any p, any m, v = 1"},
    .placement = PLACE_LOOPED,
    .default_v = 1,
    .refuses = refuses_many_chunks,
    .generate = zb_h1,
    .peak_claim = zb_h1_peak,
};
