// SPDX-License-Identifier: Apache-2.0
/* One thread of a process that watches over its ranks, and notices what they cannot: that they wait in vain.
 *
 *     r0 (pp 0 dp 0 tp 0) step 12 0F3: no progress for 30.1 s, waits for exchange pp 0>1
 *     r1 (pp 1 dp 0 tp 0) step 12 1F2: no progress for 30.1 s, waits for no message
 *
 * Progress is a rank saying what it does next (who_does); nothing is measured in between. When none of them
 * has said so for limit_s, each gets a line as above, and a second later, unless there was progress, the
 * process ends with status 1: as the other processes of a job wait too, each says its own in that second, and
 * a launcher takes down what is left. Who waits for no message is where to look.
 *
 * Time is counted in looks of the watchdog's thread, at most limit_s / 8 apart. A look that comes late counts
 * as if it had come on time: a process that was stopped, or on a machine that is overloaded, has not had the
 * time either, and is not ended for it.
 *
 * A launcher that ends a job because one process died asks the others to go (SIGTERM), and kills them a
 * second later. A trainer puts that signal off until a step is done, which now never comes; so its watchdog
 * says, once, at what the ranks are waiting.
 *
 * The trap: no progress is not the same as a hang. The limit must be longer than a rank ever waits for
 * others: than the longest single action, and where each rank is a process, than a save of the largest share.
 */
#pragma once

#include "trainer/engine/stop.h"

/* How the watchdog's thread waits; a test decides by its own how much time passes. */
struct watchdog_clock {
    /* Holds `lock`, and releases it while it waits for `ns` or until `stopping` is signalled. Returns the
     * nanoseconds that have passed: 0 where it returns for another reason. */
    int64_t (*wait)(void *context, pthread_cond_t *stopping, pthread_mutex_t *lock, int64_t ns);
    void *context;
};

struct watchdog_config {
    double limit_s;              // 0: never ends the process
    const struct stop *stop;     // of a launched process: whether SIGTERM has come; NULL: none is looked for
    struct watchdog_clock clock; // {NULL}: the monotonic clock
};

struct watchdog;

/* *out NULL when there is nothing to watch for. */
MUST_USE enum status watchdog_start(const struct watchdog_config *config, struct watchdog **out);
/* When no rank is watched any more. Takes NULL. */
void watchdog_stop(struct watchdog *watchdog);

/* A rank's place in it, in memory of the rank's. */
struct pulse {
    struct watched watched;
    int rank;
    uint64_t seen;    // of watched.progress, at the last look
    int64_t still_ns; // since the look that first saw it
    struct pulse *next;
};
/* From here to leave, this thread is watched. Both take a NULL watchdog. */
void watchdog_enter(struct watchdog *watchdog, struct pulse *pulse);
void watchdog_leave(struct watchdog *watchdog, struct pulse *pulse);
