// SPDX-License-Identifier: Apache-2.0
/* Rendezvous of lanes of several tapes: one per collective, and one per message between two ranks. Private to
 * this folder. */
#pragma once

#include "planner/tape/tape.h"

struct lane;

struct rendezvous {
    int joined, expected;
    int cause;            // the span of the last lane to join, which ends then (lanes.h)
    double ready_s;       // time at which the last lane joined
    struct lane *waiting; // linked by lane.next_waiting
};

struct rendezvous_table;
MUST_USE enum status rendezvous_table_create(struct tape *const *tapes, int count,
                                             struct rendezvous_table **out);
void rendezvous_table_destroy(struct rendezvous_table *table); // takes NULL

/* Returns the series that a message belongs to, the same on all tapes: the collectives of a group, or the
 * messages from one of its ranks to another. -1: no memory. */
int rendezvous_series(struct rendezvous_table *table, const struct tape *tape,
                      const struct tape_message *message);

/* Makes room for rendezvous 1 to `number` of a series; false: no memory. */
bool rendezvous_reserve(struct rendezvous_table *table, int series, int64_t number);
/* Returns rendezvous `number` of a series, valid until more is reserved. NULL: a rank alone, which waits for
 * none: usually a collective of ranks that one tape represents. */
struct rendezvous *rendezvous_at(const struct rendezvous_table *table, int series, int64_t number);
