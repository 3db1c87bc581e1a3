// SPDX-License-Identifier: Apache-2.0
/* ZB-V (Qi et al., 2401.10241, section 6): each rank holds the ends of a V, stages r and 2p-1-r. The last
 * stage sits on rank 0 beside the first, so a microbatch comes back to where it began: rank 0 need not
 * wait for its I until a whole pipe has drained, and no bubble is left within the memory of 1F1B.
 *
 *     p 2, rank 0:  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 ...      peak 2p chunks, which
 *          rank 1:  . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 ...    are half as large
 *
 * Filling, the stable middle in which each rank does (F I W) of its two chunks in turn, draining. The
 * figures below are for m >= 2p-1; with fewer microbatches the actions of those that do not exist fall
 * away, which leaves every order and every dependency intact. */
#include "schedules/family.h"

/* How far a rank has come with one of its chunks. */
struct arm {
    int stage;
    int f, i, w; // microbatches done
};

static void forward(struct schedule *s, struct arm *arm)
{
    schedule_add(s, FORWARD, arm->stage, arm->f++);
}

static void input(struct schedule *s, struct arm *arm)
{
    schedule_add(s, BACKWARD_INPUT, arm->stage, arm->i++);
}

static void weight(struct schedule *s, struct arm *arm)
{
    schedule_add(s, BACKWARD_WEIGHT, arm->stage, arm->w++);
}

static void zb_v_rank(struct schedule *s, int rank)
{
    int p = s->p, m = s->m > 2 * p - 1 ? s->m : 2 * p - 1;
    struct arm down = {.stage = schedule_stage(s, rank, 0)}, up = {.stage = schedule_stage(s, rank, 1)};

    // Fill: until the first microbatch comes back up, then both ways in turn.
    for (int k = 0; k < 2 * (p - rank) - 1; k++)
        forward(s, &down);
    for (int k = 0; k < rank; k++) {
        forward(s, &up);
        forward(s, &down);
    }
    for (int k = 0; k < p - rank; k++) {
        forward(s, &up);
        input(s, &up);
        weight(s, &up);
    }

    // The stable middle: six actions, no bubble.
    while (up.f < m) {
        if (down.f < m)
            forward(s, &down);
        input(s, &down);
        weight(s, &down);
        forward(s, &up);
        input(s, &up);
        weight(s, &up);
    }

    // Drain: the ranks before wait for I, so W comes last.
    for (int k = 0; k < rank; k++) {
        input(s, &down);
        input(s, &up);
    }
    while (down.i < m) {
        input(s, &down);
        weight(s, &down);
    }
    while (up.w < m)
        weight(s, &up);
    while (down.w < m)
        weight(s, &down);
}

static void zb_v(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++)
        zb_v_rank(s, rank);
}

static int zb_v_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return 2 * (s->p < s->m ? s->p : s->m);
}

const char *refuses_other_than_two_chunks(const struct schedule_options *o)
{
    return o->v == 2 ? NULL : "each rank holds two stages, the ends of a V";
}

const struct family family_zb_v = {
    .about = {.name = "zb-v",
              .idea = "No bubble where F, I and W take equal times, in 1F1B's memory: two chunks in a V.",
              .takes = "any p, any m, v = 2"},
    .placement = PLACE_V,
    .default_v = 2,
    .refuses = refuses_other_than_two_chunks,
    .generate = zb_v,
    .peak_claim = zb_v_peak,
};
