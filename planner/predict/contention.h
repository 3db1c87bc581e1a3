// SPDX-License-Identifier: Apache-2.0
/* Messages that are transferred at the same time share the links and the NICs of their ranks. Each of n
 * messages over one of these in the same direction has an n-th of its bandwidth; a message is as slow as the
 * busier of its ends. Two sends of rank 0, of 40 and of 60 s:
 *
 *     rank 0   NIC out  ▒▒▒▒▒▒▒▒▒▒        at half the speed, 20 s alone at the end
 *     rank 1   NIC in   ▒▒▒▒▒▒▒▒          40 s take 80
 *     rank 2   NIC in   ▒▒▒▒▒▒▒▒▒▒        60 s take 100
 *
 * A collective uses both directions: those of the NIC if its group has ranks on several nodes, else those of
 * the links; its speed is determined on each rank alone. The messages of one exchange count once. Copies
 * between host and device share nothing. On a CPU it is the thread of the rank that is shared. Private to
 * this folder. */
#pragma once

#include "planner/cost/cost.h"

#include <stdbool.h>

struct predictor;
struct rank;
struct lane;

/* What a rank uses for a message, as a set of bits. */
enum { NIC_OUT = 1, NIC_IN = 2, LINKS_OUT = 4, LINKS_IN = 8, CONTENDED = 4 };
unsigned contention_uses(enum call call, struct group_shape shape);

/* In-flight messages of a rank. */
struct rank_contention {
    int users[CONTENDED];
    struct lane **peer_lanes; // lanes of other ranks with a message to or from this rank; room for all lanes
    int peer_lane_count;
};

/* The messages of a busy lane begin or end at `now_s`: updates the ends of all that share something with
 * them. */
void contention_begin(struct predictor *predictor, struct lane *lane, double now_s);
void contention_end(struct predictor *predictor, struct lane *lane, double now_s);
