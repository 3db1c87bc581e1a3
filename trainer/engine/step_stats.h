// SPDX-License-Identifier: Apache-2.0
/* Statistics of a rank in a step, and what all ranks together make of them.
 *
 *     struct step_stats of each rank ── all-gather at the end of the step ──> struct step_summary
 *
 * They are available together with the result of the step (with post-validation they travel with its report),
 * on every rank: requests to all ranks are among them. */
#pragma once

#include "kernels/device.h"
#include "trainer/engine/activations/stash.h"
#include "trainer/trace/event_log.h"

/* Requests to all ranks, in ascending order: the highest one of any rank is executed. */
enum request { REQUEST_NOTHING, REQUEST_SAVE, REQUEST_STOP };

/* Of one rank; sent as bytes. */
struct step_stats {
    int32_t rank;
    enum request request;
    int64_t writes; // 1: the rank is writing a checkpoint in the background
    /* From the begin of the first to the end of the last action that computes; the sum of these actions,
     * and without their waits; the sum over stages and kinds of the fastest one. 0: unknown. */
    double span_s, busy_s, compute_s, fastest_s;
    double wait_s, data_s; // waiting, also between actions; loading samples
    int64_t peak_total_bytes, peak_bytes[PART_COUNT];
    struct slot_use slots[SLOT_LIFETIMES]; // of activations; `bytes` of all slots of a kind
};

struct step_range {
    double least, most;
};

/* Of all ranks. Bytes and slots: the maximum over ranks. */
struct step_summary {
    enum request request;
    bool writes;
    /* Idle time between the first and the last action, as a fraction of the span, of the rank with the
     * longest idle time (as in `cuboid schedule`). */
    double bubble_fraction;
    bool has_times; // some rank knows its compute time
    struct step_range compute_s, wait_s, data_s;
    int slowest; // the rank with the longest compute_s; of several, the first in the list
    int64_t peak_total_bytes, peak_bytes[PART_COUNT];
    struct slot_use slots[SLOT_LIFETIMES];
};

/* Sets span_s .. fastest_s from the times of this rank's actions, and of those that were dropped before. */
void step_stats_set_times(struct step_stats *stats, const struct schedule *schedule, int pp_rank,
                          const struct timed_action *actions, double lost_s);

/* Summarizes the statistics of count > 0 ranks. */
void step_stats_summarize(const struct step_stats *of_rank, int count, struct step_summary *out);
