// SPDX-License-Identifier: Apache-2.0
/* Ranks that compute longer than their peers. A pure function of the times of each step.
 *
 *     rank 3 (pp 0 dp 1 tp 1, node b) has computed 21 % longer than its peers over the last 20 steps
 *
 * Peers have the same pipeline coordinate, and thus the same work. A rank is compared with their median, so
 * that one slow peer does not hide another.
 *
 * A rank is named under two conditions: in almost all of the last steps it took at least 10 % longer than its
 * peers in that step, and the fastest of these steps took at least 10 % longer than theirs. Disturbances of a
 * healthy rank, such as other processes that share its caches, come and go: some of its steps are as fast as
 * those of its peers. If peers share the core of the rank, it is compared with these only: a slow core is not
 * the fault of the rank. */
#pragma once

#include "base/progress.h"

enum { STRAGGLER_STEPS = 20, STRAGGLER_SLOW = 17 };

/* A rank, and its history. */
struct straggler {
    int rank, pp, dp, tp;
    int64_t compute_ns;                 // in this step; 0: unknown
    int64_t core;                       // in this step; -1: unknown
    int64_t recent_ns[STRAGGLER_STEPS]; // of the last steps, step n at n % STRAGGLER_STEPS
    int64_t steps;                      // so far
    int64_t fastest_ns;                 // of recent_ns; 0 until there are so many
    uint32_t slow;                      // one bit for each of the last STRAGGLER_STEPS
    bool named;                         // reported; until it is as fast as its peers again
    double excess;                      // moving average of its time relative to its peers, minus 1
};

/* Updates the histories after one step. Returns the index of a rank that has now been slow in STRAGGLER_SLOW
 * of the last STRAGGLER_STEPS, and in the fastest of them, or -1. */
int straggler_step(struct straggler *ranks, int count);
