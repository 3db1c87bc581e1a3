// SPDX-License-Identifier: Apache-2.0
/* Looped schedules, in which a microbatch passes all ranks v times: rank r holds the stages r, p+r, 2p+r ...
 *
 * Interleaved 1F1B (Narayanan et al., 2104.04473) is 1F1B with v chunks per rank: filling and draining the
 * pipeline take steps that are v times shorter, so the bubble is (p-1)(f+i+w)/v if p divides m. A group of
 * microbatches passes the first chunk, then the same group the second, and so on.
 *
 *     p 2, v 2, rank 0:  0F0 0F1 2F0 2F1 . 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ...     groups (0 1) (2 3)
 *
 * A group must have at least p microbatches; otherwise the first one has not returned when the chunk
 * changes. So m microbatches are cut into m/p groups of nearly equal size. With microbatch_group_size the
 * groups have that size and the last one has the remainder. Caution: a small last group can deadlock. Rank
 * 0 is 2(p-1) forwards ahead of rank p-1, and a round trip (of an activation within the last group, of a
 * gradient within the previous one) must not be shorter, or both ranks wait for each other. In that case m
 * is cut evenly into m/microbatch_group_size groups. A larger group must not follow a smaller one either:
 * it needs forwards that the warm-up, computed for the first group, did not run.
 *
 * Breadth-first (Lamy-Poirier, 2211.05953) has one group: GPipe in every chunk. Most memory and fewest
 * changes of chunk, so sharded weights are gathered once per chunk and direction. */
#include "schedules/families/family.h"

/* Returns the size of the group that starts with microbatch `first`. */
static int group_size(const struct schedule *s, int first)
{
    int wanted = s->group > 0 ? s->group : s->p, rest = s->m % wanted;
    if (s->group > 0 && wanted + rest >= 2 * (s->p - 1))
        return s->m - first < wanted ? s->m - first : wanted;
    int groups = s->m / wanted > 1 ? s->m / wanted : 1;
    int small = s->m / groups, larger = s->m % groups; // this many groups have one more
    return first < larger * (small + 1) ? small + 1 : small;
}

struct loop loop_begin(const struct schedule *schedule, int rank, bool backwards)
{
    return (struct loop){
        .s = schedule, .rank = rank, .backwards = backwards, .size = group_size(schedule, 0)};
}

void loop_add(struct loop *loop, struct schedule *schedule, enum action_kind kind)
{
    if (loop->first == schedule->m)
        return;
    int chunk = loop->backwards ? schedule->v - 1 - loop->chunk : loop->chunk;
    schedule_add(schedule, kind, schedule_stage(schedule, loop->rank, chunk), loop->first + loop->within);
    if (++loop->within < loop->size)
        return;
    loop->within = 0;
    if (++loop->chunk < schedule->v)
        return;
    loop->chunk = 0;
    loop->first += loop->size;
    loop->size = group_size(schedule, loop->first);
}

int loop_ahead(const struct schedule *schedule)
{
    // If m is less than microbatch_group_size the given size applies, as in Megatron-LM.
    int first = group_size(schedule, 0), all = schedule->m * schedule->v;
    int64_t ahead = (int64_t)(schedule->v - 1) * (schedule->group > first ? schedule->group : first);
    return ahead < all ? (int)ahead : all;
}

static int interleaved_ahead(const struct schedule *s, int rank)
{
    int ahead = loop_ahead(s) + 2 * (s->p - 1 - rank);
    return ahead < s->m * s->v ? ahead : s->m * s->v;
}

static void interleaved(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++) {
        struct loop forward = loop_begin(s, rank, false), backward = loop_begin(s, rank, true);
        int ahead = interleaved_ahead(s, rank);
        for (int k = 0; k < s->m * s->v + ahead; k++) {
            loop_add(&forward, s, FORWARD);
            if (k >= ahead)
                loop_add(&backward, s, BACKWARD);
        }
    }
}

static int interleaved_peak(const struct schedule *s, int rank)
{
    int peak = interleaved_ahead(s, rank) + 1;
    return peak < s->m * s->v ? peak : s->m * s->v;
}

static void looped_bfs(struct schedule *s)
{
    s->group = s->m;
    for (int rank = 0; rank < s->p; rank++) {
        struct loop forward = loop_begin(s, rank, false), backward = loop_begin(s, rank, true);
        for (int k = 0; k < s->m * s->v; k++)
            loop_add(&forward, s, FORWARD);
        for (int k = 0; k < s->m * s->v; k++)
            loop_add(&backward, s, BACKWARD);
    }
}

static int looped_bfs_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return s->m * s->v;
}

const char *restriction_none(const struct schedule_options *options)
{
    (void)options;
    return NULL;
}

const struct family family_interleaved = {
    .about = {.name = "interleaved",
              .summary =
                  "1F1B with v chunks per rank: a bubble v times smaller, for v times as many messages.",
              .supports = "any p, any m, any v"},
    .placement = PLACE_LOOPED,
    .default_v = 2,
    .groups = true,
    .restriction = restriction_none,
    .generate = interleaved,
    .peak_claim = interleaved_peak,
};

const struct family family_looped_bfs = {
    .about = {.name = "looped-bfs",
              .summary = "GPipe chunk by chunk: the fewest weight gathers if weights are sharded.",
              .supports = "any p, any m, any v"},
    .placement = PLACE_LOOPED,
    .default_v = 2,
    .restriction = restriction_none,
    .generate = looped_bfs,
    .peak_claim = looped_bfs_peak,
};
