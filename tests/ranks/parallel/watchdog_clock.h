// SPDX-License-Identifier: Apache-2.0
/* The watchdogs' virtual clock in test_failure: time advances only when a rank of the world advances it, and
 * only after every process has checked its ranks. So the outcome does not depend on the speed or load of the
 * machine.
 *
 *     rank 1:                clock_others_wait(clock, 1, 4);   // the others have reached their messages
 *                            clock_pass(clock, 20, false);     // 20 checks of every watchdog
 *
 * One shared clock for all processes of a world, in a file that they map; one test clock for each process. */
#pragma once

#include "trainer/engine/watchdog.h"

#include <stdatomic.h>

enum { CLOCK_RANKS = 8 };

struct shared_clock {
    atomic_int processes;              // number of processes with a clock
    atomic_int passed;                 // checks that every watchdog may have made
    atomic_int requested[CLOCK_RANKS]; // by process: the check that its watchdog waits for
    atomic_int waits[CLOCK_RANKS];     // by rank: for a message
    atomic_bool late;                  // each check is a thousand times later than it should be
};

struct test_clock {
    struct shared_clock *shared;
    int process, checks;
    struct pulse pulses[CLOCK_RANKS]; // of this process's ranks
    atomic_bool entered[CLOCK_RANKS];
};

/* The clock of this process. path: a file created by clock_create. */
void clock_open(struct test_clock *clock, const char *path);
void clock_create(const char *path);
struct watchdog_clock clock_of(struct test_clock *clock);

/* watchdog_enter and watchdog_leave of a rank. */
void clock_enter(struct test_clock *clock, struct watchdog *dog, int rank);
void clock_leave(struct test_clock *clock, struct watchdog *dog, int rank);

/* Returns when all ranks but this one wait for a message. */
void clock_others_wait(struct test_clock *clock, int rank, int ranks);
/* Lets every watchdog of the world check `checks` times. Each check takes one interval; if `late`, the
 * process appears to have slept through a thousand intervals. Returns when all of them have checked. */
void clock_pass(struct test_clock *clock, int checks, bool late);
/* From now on time advances by itself, one check per millisecond. */
void clock_flow(struct test_clock *clock);
