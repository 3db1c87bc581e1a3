// SPDX-License-Identifier: Apache-2.0
/* Hang detection: one thread per process monitors the progress of its ranks.
 *
 *     r0 (pp 0 dp 0 tp 0) step 12 0F3: no progress for 30.1 s, waits for exchange pp 0>1
 *     r1 (pp 1 dp 0 tp 0) step 12 1F2: no progress for 30.1 s, waits for no message
 *
 * A rank makes progress when it reports its next activity (who_does); nothing is measured in between. If no
 * rank has reported for limit_s, each gets a line as above; one second later, unless there was progress, the
 * process exits with status 1. The other processes of the job also wait, so each prints its own lines within
 * that second, and the launcher ends the rest. A rank that waits for no message is the likely cause.
 *
 * Time is counted in polls of the watchdog thread, at most limit_s / 8 apart. A late poll counts as if it
 * were on time: a stopped process, or one on an overloaded machine, had no time to make progress either and
 * is not ended.
 *
 * When one process fails, a launcher sends SIGTERM to the others and kills them a second later. A trainer
 * defers SIGTERM until the end of the step, which is then never reached; so the watchdog prints once which
 * messages the ranks wait for.
 *
 * Caution: no progress does not imply a hang. The limit must exceed the longest wait of a rank: the longest
 * single action, and with one process per rank, the save of the largest shard. */
#pragma once

#include "trainer/engine/stop.h"

/* Wait function of the watchdog thread; tests replace it to control time. */
struct watchdog_clock {
    /* Called with `lock` held; releases it while waiting for `ns` or until `stopping` is signalled. Returns
     * the elapsed nanoseconds, 0 if it returns for another reason. */
    int64_t (*wait)(void *context, pthread_cond_t *stopping, pthread_mutex_t *lock, int64_t ns);
    void *context;
};

struct watchdog_config {
    double limit_s;              // 0: never end the process
    const struct stop *stop;     // of a launched process: has SIGTERM come? NULL: not queried
    struct watchdog_clock clock; // {NULL}: the monotonic clock
};

struct watchdog;

/* Sets *out to NULL if there is nothing to monitor. */
MUST_USE enum status watchdog_start(const struct watchdog_config *config, struct watchdog **out);
/* Call it when no rank is monitored any more. Accepts NULL. */
void watchdog_stop(struct watchdog *watchdog);

/* Entry of one rank; memory owned by the rank. */
struct pulse {
    struct watched watched;
    int rank;
    uint64_t seen;    // watched.progress at the last poll
    int64_t still_ns; // time since the poll that first saw this value
    struct pulse *next;
};
/* Monitors this thread from enter to leave. Both accept a NULL watchdog. */
void watchdog_enter(struct watchdog *watchdog, struct pulse *pulse);
void watchdog_leave(struct watchdog *watchdog, struct pulse *pulse);
