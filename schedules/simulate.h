// SPDX-License-Identifier: Apache-2.0
/* A clock per rank. An action starts when its rank is free and what it consumes is there; the cost
 * table says how long it takes. No event queue is needed: a rank runs ahead until it needs something
 * that is not made yet, and whoever makes it wakes the rank, so the work is one visit per action.
 *
 * Before the transfers are added a value from another rank is there one message's time after it was
 * made. Afterwards the lists decide when a message can start: transfers that overlap computation start
 * when the sender has posted it, the receiver could take it (one computing action before the RECV's
 * place in its list, see peak.h) and the edge is free; blocking ones hold up both ranks. */
#pragma once

#include "schedules/schedule.h"

struct stage_cost {
    double f, i, w;
};

/* What each of v equal parts of it takes. */
static inline struct stage_cost cost_of_part(struct stage_cost whole, int v)
{
    return (struct stage_cost){.f = whole.f / v, .i = whole.i / v, .w = whole.w / v};
}

/* Times in any one unit. */
struct cost_table {
    struct stage_cost chunk;           // F, I and W of any stage, unless of_stage says more
    const struct stage_cost *of_stage; // [stages], or NULL
    double b;                          // of a B, as a multiple of i + w; 0 means 1
    const double *b_of_stage;          // [stages] of a B, instead of that; NULL: none
    bool b_alone;                      // only f and a B are known: i and w are halves of it
    double latency;                    // of a message, on its way
    double wire;                       // of a message, on its edge, which carries one at a time
    double pair_overlap;               // two overlapped actions take: 0 their sum, 1 the longer of them
    bool blocking;                     // a transfer takes the time of both ranks
};

struct action_time {
    double start, end;
    bool critical;   // on the path that the makespan hangs on
    int64_t because; // whose end this start waited for: an index of times[]; -1: it began at 0
};

struct rank_time {
    double first_start, last_end;
    double busy;   // computing
    double bubble; // last_end - first_start - busy; 0 where only rounding is left
    int peak;      // microbatches with activations from F to W, over all chunks
};

struct simulation {
    int p;
    double makespan;
    double bubble; // of the rank that has the most
    struct rank_time *ranks;
    int64_t *first; // [p+1]: the actions of rank r are times[first[r]] .. times[first[r+1]-1]
    struct action_time *times;
    int64_t last; // where the critical path ends: `because` leads back from it; -1: there is none
};

/* BAD_SCHEDULE when the lists come to a stop, with who waits for what; `why` may be NULL. The actions
 * must be in range, as those that schedule_check() accepts are. */
MUST_USE enum status simulate(const struct schedule *schedule, const struct cost_table *costs,
                              struct complaint *why, struct simulation **out);
void simulation_destroy(struct simulation *simulation); // takes NULL

/* For times that were measured: room for them, all 0; and, once start and end of each action are there,
 * what the ranks' totals are. There is no critical path in them. */
MUST_USE enum status simulation_create(const struct schedule *schedule, struct simulation **out);
void simulation_total(const struct schedule *schedule, struct simulation *simulation);

/* Microbatches whose activations `rank` holds at once, from F to W or B, over all its chunks. */
int schedule_peak(const struct schedule *schedule, int rank);
