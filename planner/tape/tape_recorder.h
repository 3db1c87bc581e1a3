// SPDX-License-Identifier: Apache-2.0
/* Internals of a tape's recorder (tape.h), shared with its sections (tape_section.h). */
#pragma once

#include "planner/tape/tape.h"

/* Number of messages so far: collectives of a group (peer -1), or messages to or from a peer. */
struct message_counter {
    int group, peer;
    enum call call; // of a peer: send or receive
    int64_t count;
};

/* When memory is exhausted, recording stops, and tape_recorder_finish() reports it. */
struct tape_recorder {
    struct tape *tape;
    const struct stream **streams; // of the lanes
    struct stream **recorded;      // the same; NULL until an event is recorded on it
    const struct comm **comms;     // of the groups
    struct message_counter *counters;
    int counter_count, next_counter; // next_counter: where a search starts
    bool on, out_of_memory;
    int64_t items;         // of all lanes; more than TAPE_MAX_ITEMS: out_of_memory
    int64_t last_sequence; // of the last message
    int next_op;           // where the search for an op starts
};

/* Makes room for `more` of `each` bytes in a list of `count`; capacities are powers of two. */
bool tape_grow(void **list, int count, int more, size_t each);
#define GROW(list, count, more) tape_grow((void **)&(list), (count), (more), sizeof *(list))

/* Makes room for `more` items on a lane; false: no memory, or too many. */
bool tape_recorder_grow(struct tape_recorder *r, struct tape_lane *lane, int more);

/* Returns the index of the current action, and appends it if it is new. */
int tape_recorder_action(struct tape_recorder *r, const struct rank_context *who);

/* Counts a new message, and returns its number. */
int64_t tape_recorder_number(struct tape_recorder *r, const struct tape_message *message);
