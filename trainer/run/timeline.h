// SPDX-License-Identifier: Apache-2.0
/* What timelines need besides the event log of each rank (trainer/trace/event_log.h): the offset between the
 * clocks of two ranks, and costs from measured times, with which the simulator predicts the same step. */
#pragma once

#include "base/text.h"
#include "schedules/simulate.h"

/* ---- clock synchronization ---- */

/* Times of a rank at a series of barriers: arrival and departure. */
enum { TIMELINE_BARRIERS = 8 };
struct barrier_times {
    double arrived_s[TIMELINE_BARRIERS], left_s[TIMELINE_BARRIERS];
};

/* Offset of a rank's clock from the clock of rank 0. No rank leaves a barrier before all have arrived, which
 * bounds the offset from both sides. Returns 0 if 0 is within the bounds, as with threads or processes on one
 * machine. */
double timeline_clock_offset(const struct barrier_times *first, const struct barrier_times *rank);

/* ---- costs for the simulator ---- */

/* Derives a cost table from measured times: the mean F, I, W and B of every stage (0 for a kind that it
 * lacks); for a message, the shortest time between the producing action and the consuming action on another
 * rank. A B is measured as a whole; its split into I and W is unknown. of_stage and b_of_stage: [stages],
 * filled here; `out` keeps pointing to them. */
void timeline_costs(const struct schedule *schedule, const struct simulation *measured,
                    struct stage_cost *of_stage, double *b_of_stage, struct cost_table *out);

/* Formats the costs for --cost, "f=2,i=1,w=1,b=2,comm=0.1", per rank: the mean over ranks of the sum over
 * their stages. Lists only the kinds that occur in the schedule. */
void timeline_costs_text(const struct schedule *schedule, const struct cost_table *costs, struct text *out);
