// SPDX-License-Identifier: Apache-2.0
/* Communicators of transfers. An edge is (from rank, to rank, activation or gradient) and has one
 * communicator, so both ends must list its messages in the same order. Several stage boundaries can share an
 * edge: with p 2, v 2 stages 0 to 1 and 2 to 3 both go from rank 0 to rank 1. */
#pragma once

#include "schedules/schedule.h"

struct edge {
    int from, to;
    bool gradient;
};

struct edges {
    struct edge *edge;
    int count;
    int *into[2][2]; // [gradient][direction][receiving stage]: its edge, or -1 if both stages are on one rank
};

struct edges *edges_create(const struct schedule *schedule);
void edges_destroy(struct edges *edges);
/* Returns the edge of a transfer; -1 if it does not cross ranks. */
int edge_of(const struct edges *edges, const struct schedule *schedule, struct action transfer);

/* The receiving stage of a transfer, and the stage that produces the activation (or gradient) for `stage`.
 * Either may be outside 0 .. stages-1. */
static inline int transfer_receiver(struct action t)
{
    const struct action_traits *traits = action_traits(t.kind);
    if (traits->receives)
        return t.stage;
    return traits->gradient ? t.stage - 1 : t.stage + 1;
}
static inline int stage_before(int stage, bool gradient)
{
    return gradient ? stage + 1 : stage - 1;
}
/* Returns true if the input (or output gradient) of `stage` comes from another rank. */
static inline bool crosses_ranks(const struct schedule *s, int stage, int microbatch, bool gradient)
{
    int from = stage_before(stage, gradient);
    return from >= 0 && from < s->stages &&
           schedule_rank(s, from, microbatch) != schedule_rank(s, stage, microbatch);
}
