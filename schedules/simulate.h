// SPDX-License-Identifier: Apache-2.0
/* Schedule simulator with one clock per rank. An action starts when its rank is free and its inputs are
 * available; the cost table gives its duration. No event queue is needed: a rank runs ahead until an input is
 * missing, and the producer of that input wakes it, so the cost is one visit per action.
 *
 * Without transfers, a value from another rank is available one message latency after it was produced. With
 * transfers, the lists determine the start of a message: transfers that overlap computation start when the
 * sender has posted it, the receiver can accept it (one computing action before the RECV's position in the
 * list, see peak.h) and the edge is free; blocking ones occupy both ranks. */
#pragma once

#include "schedules/schedule.h"

struct stage_cost {
    double f, i, w;
};

/* Returns the cost of one of v equal parts. */
static inline struct stage_cost cost_of_part(struct stage_cost whole, int v)
{
    return (struct stage_cost){.f = whole.f / v, .i = whole.i / v, .w = whole.w / v};
}

/* Times, in any unit. */
struct cost_table {
    struct stage_cost chunk;           // F, I and W of every stage, unless of_stage is set
    const struct stage_cost *of_stage; // [stages], or NULL
    double b;                          // a B takes b·(i + w); 0: i + w
    const double *b_of_stage;          // [stages] of a B, overrides b; NULL: none
    bool b_alone;                      // only f and the time of a B are known; i and w are half of the B each
    double latency;                    // of a message, in flight
    double wire;                       // of a message, occupying its edge, which transfers one at a time
    double pair_overlap;               // duration of two overlapped actions: 0: the sum, 1: the maximum
    bool blocking;                     // transfers occupy both ranks
};

struct action_time {
    double start, end;
    bool critical; // on the critical path
    int64_t cause; // index in times[] of the action that determined this start; -1: started at 0
};

struct rank_time {
    double first_start, last_end;
    double busy;   // time computing
    double bubble; // last_end - first_start - busy; 0 within rounding
    int peak;      // microbatches with activations between F and W, over all chunks
};

struct simulation {
    int p;
    double makespan;
    double bubble; // largest of all ranks
    struct rank_time *ranks;
    int64_t *first; // [p+1]: the actions of rank r are times[first[r]] .. times[first[r+1]-1]
    struct action_time *times;
    int64_t last; // end of the critical path: follow `cause` backwards; -1: none
};

/* BAD_SCHEDULE for a deadlock, listing the waiting ranks and actions; `why` may be NULL. Actions must be in
 * range, as after schedule_check(). */
MUST_USE enum status simulate(const struct schedule *schedule, const struct cost_table *costs,
                              struct schedule_error *why, struct simulation **out);
void simulation_destroy(struct simulation *simulation); // accepts NULL

/* For measured times: allocates them, initially 0; then, when start and end of each action are set, computes
 * the ranks' totals. There is no critical path. */
struct simulation *simulation_create(const struct schedule *schedule);
void simulation_total(const struct schedule *schedule, struct simulation *simulation);

/* Returns the peak number of microbatches, over all chunks, whose activations `rank` holds (F to W or B). */
int schedule_peak(const struct schedule *schedule, int rank);
