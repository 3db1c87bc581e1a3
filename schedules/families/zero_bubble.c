// SPDX-License-Identifier: Apache-2.0
/* ZB-H1 and ZB-H2 (Qi et al., "Zero Bubble Pipeline Parallelism", 2401.10241): 1F1B with the backward split
 * in two. The previous stage waits only for I; W fills the bubble. Rank r runs `ahead` forwards more than I,
 * and W `late` microbatches after I: no later than memory allows, since a microbatch's activations are held
 * until its W.
 *
 *     ZB-H1: ahead p-1-r, late r. At most as much memory as 1F1B's first rank, on every rank: p.
 *     rank 0:  F0 F1 . I0 W0 F2 I1 W1 F3 I2 W2 I3 W3       bubble (p-1)(f+i-w) for m >= p
 *     rank 1:  . F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3       peak min(p, m)
 *
 * ZB-H1 has this bubble for w <= f, and (p-1)i beyond: with p microbatches in memory, rank 0 has p forwards
 * until the first gradient returns, which takes pf + (p-1)i, and no other work is available.
 *
 *     ZB-H2: ahead 2(p-1-r), late 2r: forwards fill the wait for the first I, without a bubble.
 *     rank 0:  F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3         peak min(2p-1, m)
 *     rank 1:  . F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
 *
 * With m < 2p-1 a rank runs out of F while I still arrive only every other unit: its W start right after its
 * last F, in between. For f = i = w = 1 the makespan is the larger of 3m + p-1 and 2m + 2p-1, and no
 * schedule is shorter: the last rank starts after p-1 units, and rank 0 has its first I after 2p-1.
 *
 *     p 3, m 4, rank 1:  . F0 F1 F2 I0 F3 I1 W0 I2 W1 I3 W2 W3
 *
 * With v chunks ZB-H1 is looped like the interleaved schedule (PyTorch's InterleavedZeroBubble); its forwards
 * are ahead by the additional number that the loop needs. */
#include "schedules/families/family.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void split_one_f_one_b(struct schedule *s, int rank, int ahead, int late)
{
    struct loop forward = loop_begin(s, rank, false);
    struct loop input = loop_begin(s, rank, true), weight = loop_begin(s, rank, true);
    int all = s->m * s->v;
    ahead = least(ahead, all);
    late = least(late, all);
    for (int k = 0; k < all + ahead + late; k++) {
        loop_add(&forward, s, FORWARD);
        if (k >= ahead)
            loop_add(&input, s, BACKWARD_INPUT);
        if (k >= ahead + late)
            loop_add(&weight, s, BACKWARD_WEIGHT);
    }
}

static void zb_h1(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++)
        split_one_f_one_b(s, rank, loop_ahead(s) + s->p - 1 - rank, rank);
}

static int zb_h1_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return least(loop_ahead(s) + s->p, s->m * s->v);
}

static void zb_h2(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++) {
        int ahead = 2 * (s->p - 1 - rank), left = s->m - 1 - ahead; // forwards after the first I
        split_one_f_one_b(s, rank, ahead, left < 0 ? 0 : least(2 * rank, left));
    }
}

static int zb_h2_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return least(2 * s->p - 1, s->m);
}

const struct family family_zb_h1 = {
    .about = {.name = "zb-h1",
              .summary = "1F1B with weight gradients in the bubble, with 1F1B's memory.",
              .supports = "any p, any m, any v"},
    .placement = PLACE_LOOPED,
    .default_v = 1,
    .groups = true,
    .restriction = restriction_none,
    .generate = zb_h1,
    .peak_claim = zb_h1_peak,
};

const struct family family_zb_h2 = {
    .about = {.name = "zb-h2",
              .summary = "No bubble if F, I and W take equal times, for twice the memory of 1F1B.",
              .supports = "any p, any m, v = 1"},
    .placement = PLACE_LOOPED,
    .default_v = 1,
    .restriction = restriction_one_chunk,
    .generate = zb_h2,
    .peak_claim = zb_h2_peak,
};
