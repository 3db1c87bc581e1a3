// SPDX-License-Identifier: Apache-2.0
/* How long the compute stream of a rank waits inside the actions of a step, on a device that executes them
 * after they were enqueued. An observer sets marks of time around each message in this stream, and around
 * each wait for another stream. The times of a step are read when the next one has been enqueued; the host
 * does not wait.
 *
 *     0F3:  ops [all_reduce tp] ops [wait for the gather of layer 2] ops
 *               ^^^^^^^^^^^^^^^     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ stalls of 0F3 */
#pragma once

#include "parallel/comm.h"
#include "trainer/trace/mark_pairs.h"

/* The stalls of one step. */
struct stalls {
    struct mark_pairs marks;
    int *position; // [capacity] of their actions, ascending
    int capacity;
};

/* {0} records nothing. */
struct stall_recorder {
    struct stalls banks[2];
    int bank;               // of the step that is being enqueued
    bool fresh;             // its first action follows
    int position;           // of the action that is being enqueued; -1: none
    struct stream *compute; // of that action
    int open;               // the stall that has begun; -1: none
    enum status status;     // of the first mark that could not be set
};

/* Attaches to the device and to the comms that the world creates from now on. Nothing happens if the ops of
 * the device are complete when their calls return, or if it has no clock. */
MUST_USE enum status stall_recorder_attach(struct stall_recorder *recorder, struct device *device,
                                           struct world *world);
/* Before the device is closed, when its streams have been synchronized; from then on nothing is recorded. */
void stall_recorder_close(struct stall_recorder *recorder);

/* Around the ops of an action. */
void stall_recorder_begin(struct stall_recorder *recorder, int position, struct stream *compute);
void stall_recorder_end(struct stall_recorder *recorder);
void stall_recorder_end_step(struct stall_recorder *recorder);
/* The step that is being enqueued starts again. */
void stall_recorder_restart(struct stall_recorder *recorder);

/* Adds the seconds of each stall of the step before to stalled_s[its action's position]; NAN if unknown. */
void stall_recorder_previous(const struct stall_recorder *recorder, double *stalled_s);
