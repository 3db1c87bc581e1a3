// SPDX-License-Identifier: Apache-2.0
/* Activations kept in the host's memory between forward and backward (schedules/offload_plan.h):
 *
 *     compute   F0            F1                ...  F3            B0
 *     offload      out 0 ────┘ slot 0 is free              in 0 ─┘ into the slot of its second life
 *
 * Both directions share one stream, so whatever was sent out is there before it is sent for. Who writes into
 * a slot acquires it first: that waits for what still reads it, a copy to the host or a message to the next
 * stage, which no action of the list waits for; and what was there is NaN on strict.
 *
 * The trap: a thing has two slots. F and its messages use that of the first life, I, B and W that of the
 * second (stash_bases()). */
#pragma once

#include "trainer/engine/stash.h"

struct offload;

/* *out is NULL where nothing of this rank goes away. */
MUST_USE enum status offload_create(struct stash *stash, struct stream *compute,
                                    const struct action_list *list, struct offload **out);
void offload_destroy(struct offload *offload); // takes NULL

/* All of these take NULL, and do nothing. */

/* `stream` is about to write into this home of a microbatch, in its first life. */
MUST_USE enum status offload_acquire(struct offload *offload, struct stream *stream, enum lifetime lifetime,
                                     int chunk, int microbatch);
/* F has been put on the compute stream: its thing may go. */
MUST_USE enum status offload_leave(struct offload *offload, int chunk, int microbatch);
/* A message that reads this home of a microbatch is done at `sent`. */
void offload_sent(struct offload *offload, enum lifetime lifetime, int chunk, int microbatch,
                  struct event sent);
/* Sends for what has to be on its way when the action at `position` begins. */
MUST_USE enum status offload_return(struct offload *offload, int position);
/* The compute stream goes on when the thing is back. */
MUST_USE enum status offload_await(struct offload *offload, int chunk, int microbatch);

/* The stream of its copies. */
struct stream *offload_stream(const struct offload *offload);
