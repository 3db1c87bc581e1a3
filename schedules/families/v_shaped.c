// SPDX-License-Identifier: Apache-2.0
/* ZB-V (Qi et al., 2401.10241, section 6): each rank holds both ends of a V, stages r and 2p-1-r. Rank 0 has
 * the first and the last stage, so a microbatch returns to the rank where it started: rank 0 does not wait
 * for its I until a whole pipeline has drained, and there is no bubble within the memory of 1F1B.
 *
 *     p 2, rank 0:  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 ...      peak 2p chunks, which
 *          rank 1:  . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 ...    are half as large
 *
 * Fill; a steady state in which each rank runs (F I W) of its two chunks alternately; drain.
 *
 * With m < 2p-1 the actions of missing microbatches are omitted, which preserves the order and all
 * dependencies but leaves gaps. In that case only F and I keep their order. They are simulated with one unit
 * per action, and a W is inserted where a rank would wait, or needs the memory for its next F:
 *
 *     p 2, m 2, rank 0:  0F0 0F1 . 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1
 *
 * The makespan in these units is then the largest of
 *     6m + p-1     the last rank starts after p-1 units and never waits;
 *     4m + 3p-1    its first I starts after 3p-1, and all its I and W follow;
 *     2m + 4p-1    rank 0 has its first I of stage 0 after 4p-1, and all I and W of that stage follow;
 * and no schedule is shorter. */
#include "schedules/families/family.h"

#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>

/* The progress of a rank in one of its chunks. */
struct chunk_progress {
    int stage;
    int f, i, w;    // microbatches done
    bool without_w; // W are counted, but not appended
};

static void forward(struct schedule *s, struct chunk_progress *chunk)
{
    schedule_add(s, FORWARD, chunk->stage, chunk->f++);
}

static void input(struct schedule *s, struct chunk_progress *chunk)
{
    schedule_add(s, BACKWARD_INPUT, chunk->stage, chunk->i++);
}

static void weight(struct schedule *s, struct chunk_progress *chunk)
{
    if (!chunk->without_w)
        schedule_add(s, BACKWARD_WEIGHT, chunk->stage, chunk->w);
    chunk->w++;
}

static void zb_v_rank(struct schedule *s, int rank, bool without_w)
{
    int p = s->p, m = s->m > 2 * p - 1 ? s->m : 2 * p - 1;
    struct chunk_progress down = {.stage = schedule_stage(s, rank, 0), .without_w = without_w};
    struct chunk_progress up = {.stage = schedule_stage(s, rank, 1), .without_w = without_w};

    // Fill: until the first microbatch returns, then both chunks alternately.
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

    // Steady state: six actions, no bubble.
    while (up.f < m) {
        if (down.f < m)
            forward(s, &down);
        input(s, &down);
        weight(s, &down);
        forward(s, &up);
        input(s, &up);
        weight(s, &up);
    }

    // Drain: the previous ranks wait for I, so W comes last.
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

/* ---- inserting W into the bubbles ---- */

enum { NEVER = INT_MAX };

/* Simulation state of a rank. */
struct rank_clock {
    struct action_list order; // its F and I
    int next;                 // of `order`
    int next_w;               // an I of `order`, or beyond `next`: the first one whose W is not done
    int held;                 // chunks
};

struct clock {
    struct schedule *s;
    struct rank_clock *ranks;
    int *available[2]; // [2p][m] time of the activation, of the gradient of a stage
    int limit;         // chunks that a rank may hold
};

static int *available_at(const struct clock *x, int which, int stage, int microbatch)
{
    return &x->available[which][(size_t)stage * (size_t)x->s->m + (size_t)microbatch];
}

static bool ready(const struct clock *x, const struct rank_clock *r, struct action a, int now)
{
    int last = x->s->stages - 1, k = a.microbatch;
    if (a.kind == FORWARD)
        return r->held < x->limit && (a.stage == 0 || *available_at(x, 0, a.stage - 1, k) <= now);
    return *available_at(x, 0, a.stage, k) <= now &&
           (a.stage == last || *available_at(x, 1, a.stage + 1, k) <= now);
}

/* Runs a rank for one unit: the next F or I, else the oldest W; returns false if neither is possible. */
static bool run_unit(const struct clock *x, struct rank_clock *r, int now)
{
    const struct action *order = r->order.actions;
    if (r->next < r->order.count && ready(x, r, order[r->next], now)) {
        struct action a = order[r->next++];
        *available_at(x, a.kind == FORWARD ? 0 : 1, a.stage, a.microbatch) = now + 1;
        r->held += a.kind == FORWARD ? 1 : 0;
        schedule_add(x->s, a.kind, a.stage, a.microbatch);
        return true;
    }
    while (r->next_w < r->next && order[r->next_w].kind == FORWARD)
        r->next_w++;
    if (r->next_w == r->next)
        return false;
    struct action input = order[r->next_w++];
    r->held--;
    schedule_add(x->s, BACKWARD_WEIGHT, input.stage, input.microbatch);
    return true;
}

/* A full rank always has a W to run: before each F the same order with every W right after its I holds fewer
 * chunks than the limit. The simulation therefore never stalls. */
static void run_clock(const struct clock *x)
{
    int64_t left = (int64_t)3 * x->s->stages * x->s->m;
    for (int now = 0; left > 0; now++)
        for (int rank = 0; rank < x->s->p; rank++)
            left -= run_unit(x, &x->ranks[rank], now) ? 1 : 0;
}

/* Inserts W into lists of F and I only. */
static void insert_weights(struct schedule *s, int limit)
{
    const size_t cells = (size_t)s->stages * (size_t)s->m;
    AUTO_FREE struct rank_clock *ranks =
        memory_zeroed((size_t)s->p, sizeof *ranks, "the ranks of a schedule");
    AUTO_FREE int *times = memory_zeroed(2 * cells, sizeof *times, "the times of a schedule");
    struct clock x = {.s = s, .limit = limit, .ranks = ranks, .available = {times, times + cells}};
    for (size_t i = 0; i < 2 * cells; i++)
        times[i] = NEVER;
    for (int rank = 0; rank < s->p; rank++) {
        ranks[rank].order = s->ranks[rank];
        s->ranks[rank] = (struct action_list){.actions = NULL};
    }
    run_clock(&x);
    for (int rank = 0; rank < s->p; rank++)
        free(ranks[rank].order.actions);
}

int64_t zb_v_units(int p, int m)
{
    int64_t full = (int64_t)6 * m + p - 1, last = (int64_t)4 * m + 3 * p - 1,
            first = (int64_t)2 * m + 4 * p - 1;
    int64_t longest = full > last ? full : last;
    return longest > first ? longest : first;
}

void zb_v_lists(struct schedule *schedule)
{
    bool few = schedule->m < 2 * schedule->p - 1;
    for (int rank = 0; rank < schedule->p; rank++)
        zb_v_rank(schedule, rank, few);
    if (few)
        insert_weights(schedule, 2 * schedule->p);
}

static int zb_v_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return 2 * (s->p < s->m ? s->p : s->m);
}

const char *restriction_two_chunks(const struct schedule_options *options)
{
    return options->v == 2 ? NULL : "each rank holds two stages, the two ends of a V";
}

const struct family family_zb_v = {
    .about = {.name = "zb-v",
              .summary = "No bubble if F, I and W take equal times, with 1F1B's memory: two chunks in a V.",
              .supports = "any p, any m, v = 2"},
    .placement = PLACE_V,
    .default_v = 2,
    .restriction = restriction_two_chunks,
    .generate = zb_v_lists,
    .peak_claim = zb_v_peak,
};
