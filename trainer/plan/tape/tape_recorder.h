// SPDX-License-Identifier: Apache-2.0
/* Internals of a tape's recorder (tape.h), shared with its sections (tape_section.h). */
#pragma once

#include "trainer/plan/tape/tape.h"

/* Messages so far: of a group's collectives (peer -1), or of those to or from a peer. */
struct message_counter {
    int group, peer;
    enum call call; // of a peer: send or receive
    int64_t count;
};

/* Without memory it stops, and reports that at the end. */
struct tape_recorder {
    struct tape *tape;
    const struct stream **streams; // of the lanes
    struct stream **recorded;      // the same; NULL until an event is recorded on it
    const struct comm **comms;     // of the groups
    struct message_counter *counters;
    int counter_count, next_counter; // next: where to look first
    bool on, out_of_memory;
    int64_t items;         // of all lanes; more than TAPE_MOST_ITEMS: out_of_memory
    int64_t last_sequence; // of the last message
    int next_op;           // where to look for the next op first
};

/* Makes room for `more` of `each` bytes in a list of `count`; capacities are powers of two. */
bool tape_grow(void **list, int count, int more, size_t each);
#define GROW(list, count, more) tape_grow((void **)&(list), (count), (more), sizeof *(list))

/* Makes room for more items of a lane; false: no memory, or too many. */
bool tape_recorder_grow(struct tape_recorder *r, struct tape_lane *lane, int more);

/* The index of an action; actions come one after the other. */
int tape_recorder_action(struct tape_recorder *r, const char *name);

/* The number of a new message, which is counted. */
int64_t tape_recorder_number(struct tape_recorder *r, const struct tape_message *message);
