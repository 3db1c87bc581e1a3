// SPDX-License-Identifier: Apache-2.0
/* The activations and stage gradients of a rank's microbatches, in device memory (stash.h) and, with
 * offload, in host memory between forward and backward (offload.h). An action acquires what it reads and
 * writes before its ops are enqueued, and releases it afterwards:
 *
 *     action            acquire: its ops wait until                  release
 *     RECV_ACTIVATION   the input may be written                     -
 *     F                 the activations may be written               starts their copy to the host
 *     SEND_ACTIVATION   -                                            the message delays the next writer
 *     RECV_GRADIENT     the gradient may be written                  -
 *     I, B              the activations are back on the device       what I reads last is dead
 *     W, B              -                                            what W reads last is dead
 *     SEND_GRADIENT     -                                            the message delays the next writer
 *
 * Dead memory is filled with NaN on the strict device. In an evaluation, actions acquire but release nothing.
 *
 * Invariant: a slot that an action reads holds the tensors of its own microbatch. activation_store_acquire()
 * checks it for every action, in constant time. */
#pragma once

#include "trainer/engine/activations/stash.h"

struct offload;

struct activation_store {
    const struct schedule *schedule;
    int pp_rank;
    struct stream *compute;
    struct stash stash;
    struct offload *offload; // NULL: no offload
};

struct activation_store_config {
    const struct schedule *schedule; // with transfers; must outlive the store, as all of these
    int pp_rank;
    const struct stage *stages; // [chunks]
    struct stream *compute;
    bool training; // false: forward passes only, no gradients
    bool offload;  // if the schedule leaves time for it
};
MUST_USE enum status activation_store_create(const struct activation_store_config *config,
                                             struct activation_store *out);
void activation_store_destroy(struct activation_store *store); // accepts {0}

/* Checks that every action of the rank's list has slots and a gradient buffer within the memory allocated.
 * BAD_SCHEDULE otherwise. */
MUST_USE enum status activation_store_check(const struct activation_store *store);

/* Starts the copies from the host that must be in flight when the action at `position` of the list begins. */
MUST_USE enum status activation_store_prefetch(struct activation_store *store, int position);

/* Acquires what the action reads and writes; base: its addresses of each lifetime. BAD_SCHEDULE if it reads
 * a slot that holds another microbatch. */
MUST_USE enum status activation_store_acquire(struct activation_store *store, struct action action,
                                              char *base[LIFETIME_COUNT]);
MUST_USE enum status activation_store_release(struct activation_store *store, struct action action);

/* The message that sends the output of the action's stage reads it until `sent`. */
void activation_store_sent(struct activation_store *store, struct action action, struct event sent);

/* The gradient buffer of the action's stage and microbatch. */
struct stage_gradient {
    struct tensor data;
    struct event *sent; // the message that reads it; the next writer waits for it
};
struct stage_gradient activation_store_gradient(const struct activation_store *store, struct action action);

/* The addresses of a microbatch in its forward (or backward) pass, without acquiring them. */
void activation_store_addresses(const struct activation_store *store, struct action action,
                                char *base[LIFETIME_COUNT]);
