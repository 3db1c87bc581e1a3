// SPDX-License-Identifier: Apache-2.0
/* A section of a tape: what was recorded between two points. A step runs equal sections many times, so the
 * program enqueues a section once and the recorder repeats it: the same ops, messages with their next
 * numbers, events with the next numbers of their streams.
 *
 *     recorded   gemm, all_reduce tp number 7, record 3, wait 3      1F2
 *     repeated   gemm, all_reduce tp number 9, record 5, wait 5      1F3
 *
 * Caution: valid only if the program would have enqueued the same again. Whatever the program keeps of the
 * section, such as an event, must be replaced by the caller. */
#pragma once

#include "planner/tape/tape.h"

struct tape_section;
/* Begins a section at the current point of a recorder that is recording. */
MUST_USE enum status tape_section_begin(const struct tape_recorder *recorder, struct tape_section **out);
void tape_section_destroy(struct tape_section *section); // takes NULL

/* Ends a section. False if it cannot be repeated: it waits for too many events from before its beginning. */
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
