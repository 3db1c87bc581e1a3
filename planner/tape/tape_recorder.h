// SPDX-License-Identifier: Apache-2.0
/* Internals of a recorder of tapes (tape.h): its state, sections that repeat, and the state of arenas. */
#pragma once

#include "layers/parameters/layer_arena.h"
#include "planner/tape/tape.h"

/* Number of messages so far: collectives of a group (peer -1), or messages to or from a peer. */
struct message_counter {
    int group, peer;
    enum call call; // of a peer: send or receive
    int64_t count;
};

/* When the tape is too long, recording stops, and tape_recorder_finish() reports it. */
struct tape_recorder {
    struct tape *tape;
    const struct stream **streams; // of the lanes
    struct stream **recorded;      // the same; NULL until an event is recorded on it
    const struct comm **comms;     // of the groups
    struct message_counter *counters;
    int counter_count, next_counter; // next_counter: where a search starts
    bool on;
    int64_t items;         // of all lanes; more than TAPE_MAX_ITEMS: too long
    int64_t last_sequence; // of the last message
    int next_op;           // where the search for an op starts
};

/* Makes room for `more` of `each` bytes in a list of `count`; capacities are powers of two. */
void tape_grow(void **list, int count, int more, size_t each);
#define GROW(list, count, more) tape_grow((void **)&(list), (count), (more), sizeof *(list))

/* Makes room for `more` items on a lane; false: the tape is too long. */
bool tape_recorder_grow(struct tape_recorder *r, struct tape_lane *lane, int more);

/* Returns the index of the current action, and appends it if it is new. */
int tape_recorder_action(struct tape_recorder *r, const struct rank_context *who);

/* Counts a new message, and returns its number. */
int64_t tape_recorder_number(struct tape_recorder *r, const struct tape_message *message);

/* ---- tape_section.c ---- */

/* A section of a tape: what was recorded between two points. A step runs equal sections many times, so the
 * program enqueues a section once and the recorder repeats it: the same ops, messages with their next
 * numbers, events with the next numbers of their streams.
 *
 *     recorded   gemm, all_reduce tp number 7, record 3, wait 3      1F2
 *     repeated   gemm, all_reduce tp number 9, record 5, wait 5      1F3
 *
 * Caution: valid only if the program would have enqueued the same again. Whatever the program keeps of the
 * section, such as an event, must be replaced by the caller. */

struct tape_section;
/* Begins a section at the current point of a recorder that is recording. */
struct tape_section *tape_section_begin(const struct tape_recorder *recorder);
void tape_section_destroy(struct tape_section *section); // takes NULL

/* Ends a section. False if it cannot be repeated: it waits for too many events from before its beginning, or
 * the tape is too long. */
MUST_USE bool tape_section_end(const struct tape_recorder *recorder, struct tape_section *section);

/* Outer events: those recorded in this step before the section, for which it waits. Events from before the
 * step are repeated unchanged. */
enum { TAPE_SECTION_OUTER = 4 };
int tape_section_outer(const struct tape_recorder *recorder, const struct tape_section *section,
                       struct event out[TAPE_SECTION_OUTER]);

/* Records it again, for the current action. Advances the events of the streams. outer: the events for which
 * it waits now, in the order of tape_section_outer(). */
void tape_section_repeat(struct tape_recorder *recorder, struct tape_section *section,
                         const struct event *outer);

/* Replaces an event of the section by its counterpart in the last repetition. False if it is not of the
 * section. */
bool tape_section_event(const struct tape_recorder *recorder, const struct tape_section *section,
                        struct event *event);

/* ---- arena_state.c ---- */

/* State of the rotating buffers of ZeRO stages 2 and 3 (layers/parameters/layer_arena.h) before or after an
 * action: which slot is next, and the events after which it may be overwritten. Two equal actions that start
 * in the same state, except for the numbers of events, enqueue the same and end in the same state. */

/* The arenas of gathered weights and of gradients; {0} without arenas. */
struct arena_state {
    struct layer_arena arena[2];
};
struct arena_state arena_state_of(const struct weights *weights);

/* True if the states are equal except for the numbers of events. */
bool arena_state_equals(const struct arena_state *a, const struct arena_state *b);

/* Replaces events of `before` by those of `now`. False if one of them has no counterpart, or several. */
MUST_USE bool arena_state_events(const struct arena_state *before, const struct arena_state *now,
                                 struct event *events, int count);

/* Sets the arenas of the weights to their state after a repeated action. */
void arena_state_repeat(const struct weights *weights, const struct arena_state *before,
                        const struct arena_state *after, const struct tape_recorder *recorder,
                        const struct tape_section *section);
