// SPDX-License-Identifier: Apache-2.0
/* Where lanes of several tapes meet: one meeting per collective, or per message between two ranks. Private to
 * this folder. */
#pragma once

#include "trainer/plan/tape/tape.h"

struct lane;

struct meeting {
    int joined, expected;
    int cause;            // the span of the last one that joined, which ends then (lanes.h)
    double ready_s;       // when the last one joined
    struct lane *waiting; // linked by lane.next_waiting
};

struct meetings;
MUST_USE enum status meetings_create(struct tape *const *tapes, int count, struct meetings **out);
void meetings_destroy(struct meetings *meetings); // takes NULL

/* The series of meetings that a message belongs to: of a group's collectives, or of the messages from one of
 * its ranks to another. The same on all tapes. -1: no memory. */
int meetings_series(struct meetings *meetings, const struct tape *tape, const struct tape_message *message);

/* Meeting `number` of a series, from 1. NULL: no memory. */
struct meeting *meeting_at(struct meetings *meetings, int series, int64_t number);
