// SPDX-License-Identifier: Apache-2.0
/* When a rank did what, in one step: the start and the end of every action of its list. The executor notes
 * them, always, since that costs two numbers an action; profile.timeline chooses the steps that are written.
 *
 *     position 0 (0F0)  12.0310 s .. 12.0345 s      the host's clock, which other ranks need not share
 *     position 1 (0F1)  12.0346 s .. 12.0380 s
 *
 * An action of the list begins when what it waits for is there, so what lies between two of them is the
 * bubble. The trap: actions of the next step may be noted before this one is written, so what is being
 * noted and what is whole are kept apart. */
#pragma once

#include "schedules/simulate.h"

struct timeline {
    int count;     // actions of this rank's list
    double *noted; // [count][2] of the step that is going on
    double *whole; // [count][2] of the last step that ended
};

MUST_USE enum status timeline_create(int count, struct timeline *out);
void timeline_destroy(struct timeline *timeline); // takes {0}

static inline void timeline_note(struct timeline *timeline, int position, double start_s, double end_s)
{
    timeline->noted[2 * position] = start_s;
    timeline->noted[2 * position + 1] = end_s;
}
/* Every action of the step has been noted. */
void timeline_close(struct timeline *timeline);

/* ---- from many ranks' clocks to one ---- */

/* What a rank saw of some barriers: when it came to each, and when it was let go. */
enum { TIMELINE_BARRIERS = 8 };
struct barrier_times {
    double came_s[TIMELINE_BARRIERS], left_s[TIMELINE_BARRIERS];
};

/* How much a rank's clock is ahead of the first one's. Nobody leaves a barrier before everybody has come,
 * which bounds it from both sides; where 0 is possible, as with threads, and processes of one machine, it is
 * 0. */
double timeline_clock_ahead(const struct barrier_times *first, const struct barrier_times *rank);

/* ---- the bubble ---- */

/* The bubble of a step is that of the rank that waits longest between its first action and its last; the
 * fraction is that over the same rank's span, as `cuboid schedule` says it. What a rank says of itself is one
 * number, made so that of all ranks' numbers the greatest is that rank's and has its fraction: the bubble in
 * whole microseconds, and behind the point the fraction, which is below 1. Seconds; 0 for a rank that did
 * nothing. */
double timeline_bubble_stat(double span_s, double busy_s);
double timeline_bubble_fraction(double collect_stats);

/* ---- what the simulator would have said ---- */

/* The costs that were measured: the mean F, I, W and B of every stage, 0 where it has none of a kind, and of
 * a message the shortest time between the action that made a value and the one on another rank that took it.
 * A B is measured as a whole; how much of it is I and how much W is not known. of_stage and b_of_stage:
 * [stages], to be filled; `out` points to them from then on. */
void timeline_costs(const struct schedule *schedule, const struct simulation *measured,
                    struct stage_cost *of_stage, double *b_of_stage, struct cost_table *out);

/* "f=2,i=1,w=1,b=2,comm=0.1", as --cost takes them, of a whole rank: the mean over ranks of what their stages
 * take. Names only the kinds that the schedule has. */
void timeline_costs_text(const struct schedule *schedule, const struct cost_table *costs, struct text *out);
