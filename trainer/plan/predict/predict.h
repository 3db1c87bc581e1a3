// SPDX-License-Identifier: Apache-2.0
/* Plays tapes: one rank of each pipeline coordinate, its streams as lanes. A lane runs its items in order; a
 * wait holds it until the event is recorded; a message starts when all tapes whose ranks take part have
 * reached it. Ranks without a tape (other data and tensor ranks) run in step with those that have one.
 *
 *     rank 0  compute      0F0 ████ 0F1 ████          0B0 ████████
 *             activations           ▒▒       ▒▒
 *     rank 2  compute               ┊ 1F0 ████ 1B0 ████████
 *
 * The time of a rank is divided completely: what its compute lane runs, by class of op; what it waits for, by
 * group, as far as a transfer took place; and the rest, in which it waited for other ranks (the bubble). */
#pragma once

#include "trainer/plan/cost/cost.h"
#include "trainer/plan/tape/tape.h"

/* Groups by what they are for. GROUP_HOST: copies between host and device. */
enum predict_group { GROUP_TP, GROUP_PP, GROUP_DP, GROUP_HOST, GROUP_OTHER, PREDICT_GROUPS };
const char *predict_group_name(enum predict_group group);

struct predicted_rank {
    double run_s[COST_CLASSES];       // of the compute lane
    double exposed_s[PREDICT_GROUPS]; // transfers that the compute lane waited for
    double bubble_s;                  // the compute lane waited for other ranks
    double update_s; // of run_s and exposed_s: after the backward passes (actions "optimizer" and later)
    double transfer_s[PREDICT_GROUPS]; // duration of all transfers, exposed or not
    int64_t bytes[PREDICT_GROUPS], calls[PREDICT_GROUPS];
    double end_s;
};

struct prediction {
    int count;
    double step_s;
    struct predicted_rank *ranks; // [count]; those of one rank add up to step_s
};

/* BAD_SCHEDULE names the ranks and items that wait for each other; NO_MEMORY. */
MUST_USE enum status predict_step(const struct cost_options *options, struct tape *const *tapes, int count,
                                  struct prediction **out);
void prediction_destroy(struct prediction *prediction); // takes NULL
