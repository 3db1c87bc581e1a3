// SPDX-License-Identifier: Apache-2.0
/* Ways to corrupt a schedule, for the tests of the checker. */
#pragma once

#include "tests/unit/schedules/schedule_tools.h"

static inline struct action *at(struct schedule *s, int rank, int position)
{
    cr_assert(position >= 0 && position < s->ranks[rank].count);
    return &s->ranks[rank].actions[position];
}

/* Removes the action at `from` and inserts it at `to`. */
static inline void move(struct schedule *s, int rank, int from, int to)
{
    struct action a = *at(s, rank, from);
    struct action *list = s->ranks[rank].actions;
    if (from < to)
        memmove(list + from, list + from + 1, (size_t)(to - from) * sizeof a);
    else
        memmove(list + to + 1, list + to, (size_t)(from - to) * sizeof a);
    list[to] = a;
}

static inline void remove_at(struct schedule *s, int rank, int position)
{
    move(s, rank, position, s->ranks[rank].count - 1);
    s->ranks[rank].count--;
}

/* The index of an action in a rank's list; -1 if it is missing. */
static inline int position_of(const struct schedule *s, int rank, enum action_kind kind, int stage,
                              int microbatch)
{
    for (int i = 0; i < s->ranks[rank].count; i++) {
        struct action a = s->ranks[rank].actions[i];
        if (a.kind == kind && a.stage == stage && a.microbatch == microbatch)
            return i;
    }
    return -1;
}

static inline void forget_pairs(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++)
            s->ranks[rank].actions[i].overlaps_next = false;
}
