// SPDX-License-Identifier: Apache-2.0
/* Per-step timeline of a rank: start and end of every action of its list. The executor always records them,
 * since this costs two doubles per action; profile.timeline selects the steps that are written.
 *
 *     position 0 (0F0)  12.0310 s .. 12.0345 s      host clock; ranks need not share it
 *     position 1 (0F1)  12.0346 s .. 12.0380 s
 *
 * An action begins when its inputs are available, so the gaps between actions are the bubble. Caution:
 * actions of the next step may be recorded before this step is written, so the step in progress and the last
 * complete step are stored separately. */
#pragma once

#include "schedules/simulate.h"

struct timeline {
    int count;        // actions of this rank's list
    double *current;  // [count][2], step in progress
    double *complete; // [count][2], last complete step
};

MUST_USE enum status timeline_create(int count, struct timeline *out);
void timeline_destroy(struct timeline *timeline); // accepts {0}

static inline void timeline_record(struct timeline *timeline, int position, double start_s, double end_s)
{
    timeline->current[2 * position] = start_s;
    timeline->current[2 * position + 1] = end_s;
}
/* Ends a step: all of its actions have been recorded. */
void timeline_end_step(struct timeline *timeline);

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
