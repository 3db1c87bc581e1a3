// SPDX-License-Identifier: Apache-2.0
/* A section of a tape: what was recorded between two points. A step runs equal sections many times, so the
 * program enqueues a section once and the recorder repeats it: the same ops, messages with their next
 * numbers, events with the next numbers of their streams.
 *
 *     recorded   gemm, all_reduce tp number 7, record 3, wait 3      1F2
 *     repeated   gemm, all_reduce tp number 9, record 5, wait 5      1F3
 *
 * Caution: valid only if the program would have enqueued the same again, and keeps nothing of what it
 * enqueued in the section, such as an event. */
#pragma once

#include "trainer/plan/tape/tape.h"

struct tape_section;
/* Begins at the current point of a recorder that records. */
MUST_USE enum status tape_section_begin(const struct tape_recorder *recorder, struct tape_section **out);
void tape_section_destroy(struct tape_section *section); // takes NULL

/* Ends a section. False if it cannot be repeated: it waits for an event from before its beginning. */
MUST_USE bool tape_section_end(const struct tape_recorder *recorder, struct tape_section *section);

/* Records it again, for the current action. Advances the events of the streams. */
void tape_section_repeat(struct tape_recorder *recorder, const struct tape_section *section);
