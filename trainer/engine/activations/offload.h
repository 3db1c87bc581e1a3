// SPDX-License-Identifier: Apache-2.0
/* Part of the activation store (activation_store.h): offload to host memory between forward and backward
 * (schedules/offload_plan.h):
 *
 *     compute   F0            F1                ...  F3            B0
 *     offload      out 0 ────┘ slot 0 is free              in 0 ─┘ into the backward slot
 *
 * Both directions share one stream, so a copy to the host has completed before its copy back starts. A slot
 * must be acquired before it is written: this waits for readers that no action of the list waits for (a copy
 * to the host, a message to the next stage) and poisons the old contents with NaN on the strict device.
 *
 * Caution: an offloaded activation has two slots. F and its messages use the forward slot; I, B and W use
 * the backward slot (stash_bases()). */
#pragma once

#include "trainer/engine/activations/stash.h"

struct offload;

/* Sets *out to NULL if this rank offloads nothing. */
MUST_USE enum status offload_create(struct stash *stash, struct stream *compute,
                                    const struct action_list *list, struct offload **out);
void offload_destroy(struct offload *offload); // accepts NULL

/* All functions below accept NULL and then do nothing. */

/* Acquires the forward slot of a microbatch for writing on `stream`. */
MUST_USE enum status offload_acquire(struct offload *offload, struct stream *stream, enum lifetime lifetime,
                                     int chunk, int microbatch);
/* Starts the copy to the host; call it after F has been enqueued on the compute stream. */
MUST_USE enum status offload_to_host(struct offload *offload, int chunk, int microbatch);
/* Registers the event at which a message has finished reading the slot. */
void offload_sent(struct offload *offload, enum lifetime lifetime, int chunk, int microbatch,
                  struct event sent);
/* Starts the copies back to the device that must be in flight when the action at `position` begins. */
MUST_USE enum status offload_prefetch(struct offload *offload, int position);
/* Makes the compute stream wait for the copy back to the device. */
MUST_USE enum status offload_wait(struct offload *offload, int chunk, int microbatch);

/* The stream of the offload copies. */
struct stream *offload_stream(const struct offload *offload);
