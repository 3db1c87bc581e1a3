// SPDX-License-Identifier: Apache-2.0
/* Which messages share a wire. An edge is (from rank, to rank, activation or gradient); it has one
 * communicator, so both of its ends must name its messages in the same order. Several stage boundaries
 * can lie on one edge: with p 2, v 2 stages 0 to 1 and 2 to 3 both go from rank 0 to rank 1. */
#pragma once

#include "schedules/schedule.h"

struct edge {
    int from, to;
    bool gradient;
};

struct edges {
    struct edge *edge;
    int count;
    int *into[2][2]; // [gradient][direction][stage that receives]: its edge, or -1 where none is crossed
};

MUST_USE enum status edges_create(const struct schedule *schedule, struct edges **out);
void edges_destroy(struct edges *edges);
/* The edge that a transfer uses; -1 when it crosses no boundary between ranks. */
int edge_of(const struct edges *edges, const struct schedule *schedule, struct action transfer);

/* The stage that receives what a transfer carries, and the stage that an activation (or, with
 * `gradient`, a gradient) for `stage` comes from. Either may lie outside of 0 .. stages-1. */
int transfer_receiver(struct action transfer);
static inline int stage_before(int stage, bool gradient)
{
    return gradient ? stage + 1 : stage - 1;
}
/* True where the input (or output gradient) of `stage` comes from another rank. */
bool crosses_ranks(const struct schedule *schedule, int stage, int microbatch, bool gradient);
