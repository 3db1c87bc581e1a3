// SPDX-License-Identifier: Apache-2.0
/* Ranks that compute longer than their peers. A pure function of the times of each step.
 *
 *     rank 3 (pp 0 dp 1 tp 1, node b) has computed 21 % longer than its peers over the last 20 steps
 *
 * Peers have the same pipeline coordinate, and thus the same work. A rank is compared with their median, so
 * that one slow peer does not hide another. */
#pragma once

#include "base/progress.h"

enum { STRAGGLER_STEPS = 20, STRAGGLER_SLOW = 17 };

/* A rank, and its history. */
struct straggler {
    int rank, pp, dp, tp;
    int64_t compute_ns; // in this step
    uint32_t slow;      // one bit for each of the last STRAGGLER_STEPS: at least 10 % longer than its peers
    bool named;         // reported; until it is as fast as its peers again
    double excess;      // moving average of its time relative to the median of its peers, minus 1
};

/* Updates the histories after one step. Returns the index of a rank that has now been slow in STRAGGLER_SLOW
 * of the last STRAGGLER_STEPS, or -1. Not all steps are required: on a busy machine a peer may be slow now
 * and then. */
int straggler_step(struct straggler *ranks, int count);
