// SPDX-License-Identifier: Apache-2.0
/* Simulates tapes: one rank of each pipeline coordinate, its streams as lanes. A lane runs its items in
 * order; a wait holds it until the event is recorded; a message starts when all tapes whose ranks take part
 * have reached it. Ranks without a tape (other data and tensor ranks) run in step with those that have one.
 *
 *     rank 0  compute      0F0 ████ 0F1 ████          0B0 ████████
 *             activations           ▒▒       ▒▒
 *     rank 2  compute               ┊ 1F0 ████ 1B0 ████████
 *
 * Ranks share the cores of their node's CPU. While the threads that run ops or move messages outnumber the
 * cores, each op of the node runs slower by that factor. Message times of a profile were measured while all
 * ranks of a node were busy: while some wait, a message is faster in proportion, at most as with a core for
 * each. Ranks that wait for messages leave their cores to the others, except for polling processes
 * (node.waiting_process):
 *
 *     1 core   rank 0  ████▒▒▒▒████           ▒ both run, at half the speed
 *              rank 1      ▒▒▒▒
 *
 * On a CPU the thread of a rank moves its messages itself, so that nothing overlaps: its ops pause meanwhile,
 * and messages at the same time share the thread like links (lanes.h).
 *
 * The time of a rank is accounted for completely: ops on its compute lane, by class; exposed transfers, by
 * group; and the rest, in which the compute lane waits for other ranks (the bubble). */
#pragma once

#include "planner/cost/cost.h"
#include "planner/tape/tape.h"

/* Messages by purpose. GROUP_ZERO: reduce-scatters and all-gathers of data-parallel ranks;
 * GROUP_DP: their all-reduces. GROUP_HOST: copies between host and device. */
enum predict_group { GROUP_TP, GROUP_PP, GROUP_DP, GROUP_ZERO, GROUP_HOST, GROUP_OTHER, PREDICT_GROUPS };
const char *predict_group_name(enum predict_group group);

struct predicted_rank {
    double run_s[COST_CLASSES];       // of the compute lane
    double exposed_s[PREDICT_GROUPS]; // transfers that the compute lane waited for, or paused for
    double bubble_s;                  // the compute lane waited for other ranks
    double update_s; // part of run_s and exposed_s after the backward passes (actions "optimizer" and later)
    double transfer_s[PREDICT_GROUPS]; // duration of all transfers, exposed or not
    int64_t bytes[PREDICT_GROUPS], calls[PREDICT_GROUPS];
    double end_s;
    double critical_s; // this rank's part of the critical path
};

/* A time in which a lane is busy: with consecutive ops of one action, or with the messages of one
 * exchange. */
struct predicted_span {
    double begin_s, end_s;
    double shared_s;          // part of it lost to shared cores
    double paused_s;          // of ops: part of it in which the thread of the rank moved messages,
    enum predict_group moved; // of this group
    int rank;                 // index in prediction.ranks
    int lane;                 // index in the lanes of the rank's tape
    int first, count;         // items of the lane
    int cause;                // the span whose end let it begin, at begin_s; -1: it began at 0
    bool critical;            // on the critical path
};

/* Runs from the last span back through the causes. There is no gap between a span and its cause, so the parts
 * add up to the simulated step. */
struct critical_path {
    double run_s[COST_CLASSES];        // of ops
    double transfer_s[PREDICT_GROUPS]; // of messages, and of copies
};

struct prediction {
    int count;
    double step_s;
    /* By how much consecutive steps overlap, with optimizer post-validation (lanes.h): the simulated step
     * takes step_s + overlap_s from its first op to its last. */
    double overlap_s;
    struct predicted_rank *ranks; // [count]; those of one rank add up to step_s
    /* Filled by predict_timeline() only: */
    struct predicted_span *spans; // in the order of begin_s
    int64_t span_count;
    int last_span; // the first of those that end last; -1: none
    struct critical_path path;
    bool exceeds; // predict_within() only: the step takes longer than the limit; the rest is incomplete
};

/* Predicts a step. BAD_SCHEDULE names the ranks and items that wait for each other; NO_MEMORY. */
MUST_USE enum status predict_step(const struct cost_options *options, struct tape *const *tapes, int count,
                                  struct prediction **out);
/* Same, but ends as soon as a rank cannot end before `limit_s`, even if it never waits again. INFINITY: no
 * limit. */
MUST_USE enum status predict_within(const struct cost_options *options, struct tape *const *tapes, int count,
                                    double limit_s, struct prediction **out);
/* As predict_step(); also records the spans of all lanes and the critical path. */
MUST_USE enum status predict_timeline(const struct cost_options *options, struct tape *const *tapes,
                                      int count, struct prediction **out);
void prediction_destroy(struct prediction *prediction); // takes NULL

/* All that determines the time of a message, besides the profile. */
struct message_kind {
    enum call call;
    struct group_shape shape;
    int64_t bytes;
    enum predict_group group;
};
struct message_kind predict_message_kind(const struct cost_options *options, const struct tape *tape,
                                         const struct tape_message *message);
/* The time of such a message in a prediction. */
double predict_message_s(const struct cost_options *options, const struct message_kind *kind);
