// SPDX-License-Identifier: Apache-2.0
/* Observers of a rank: they are notified of every op enqueued, every allocation and release, every action,
 * and (parallel/observe_world.h) every message. An observer is attached to a device by replacing its ops
 * table by a copy whose entries report to the observers and then call the original. Without an observer
 * nothing is replaced, and there is no overhead.
 *
 *     device.h, ops.h ──> observed table ──> notify(), of each observer
 *                              └───────────> table of the device
 *
 * An observation has the rank and its coordinates, the step, action and time, and the event with its size. An
 * observer that keeps an observation copies the parts that it needs: its pointers are valid during the call.
 *
 * Caution: notify() runs on the thread of the rank, before the call that it reports (allocations: after
 * it). It must not enqueue anything but marks of time, allocate from the device, or wait for other ranks. An
 * observer of several ranks is called from several threads. */
#pragma once

#include "kernels/device.h"

enum observed {
    OBSERVED_RANGE,   // an action, or another named part of a step, begins or ends
    OBSERVED_OP,      // an op is enqueued; inside a replayed graph: when it is captured
    OBSERVED_RECORD,  // an event is recorded
    OBSERVED_WAIT,    // a stream waits for an event
    OBSERVED_ALLOC,   // device or host memory, which now exists
    OBSERVED_FREE,    // the same, before it is released
    OBSERVED_MESSAGE, // a collective, or one message of an exchange, is enqueued
    OBSERVED_COUNT
};

/* An allocation. */
struct observed_memory {
    enum part part;
    size_t bytes; // as accounted: rounded up to a multiple of 64
    const void *data;
};

struct observed_message; // parallel/observe_world.h

struct observation {
    enum observed what;
    const struct rank_context *who; // rank and coordinates, step and action
    bool enqueued;                  // reported again after the call, to observers that request it
    int64_t at_ns;                  // clock_ns(); 0 if no observer of the device or comm needs it
    const struct stream *stream;    // of an op, an event, a message; else NULL
    union {
        const char *range; // OBSERVED_RANGE: the name of the range that begins; NULL: the innermost one ends
        const struct op *op;
        struct event event; // OBSERVED_RECORD, OBSERVED_WAIT
        struct observed_memory memory;
        const struct observed_message *message;
    };
};

struct observer {
    void (*notify)(void *context, const struct observation *observation);
    void *context;
    bool ignores_time;  // at_ns may be 0: reading the clock takes longer than a dry op
    bool sees_enqueued; // notified of ops, waits and messages a second time, when they are enqueued
};

/* Attaches an observer, after those that are attached already, until the device is closed. BAD_ARGUMENT if
 * there are OBSERVERS already. */
enum { OBSERVERS = 6 };
MUST_USE enum status device_observe(struct device *device, struct observer observer);

/* For tables that are wrapped in the same way: a list of observers, and a report to all of them;
 * observers_notify() sets who and at_ns. */
struct observers {
    int count;
    bool needs_time, see_enqueued; // of any of them
    struct observer list[OBSERVERS];
};
MUST_USE enum status observers_add(struct observers *observers, struct observer observer);
void observers_notify(const struct observers *observers, struct observation observation);
/* The second notification of an op, a wait or a message whose call returned `status`, unless that is a
 * failure; returns `status`. */
MUST_USE enum status observers_enqueued(const struct observers *observers, struct observation observation,
                                        enum status status);
