// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/parallel/watchdog_clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_NS = 1000000, BILLION = 1000000000, FLOWS = 1 << 30 };

void clock_create(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && ftruncate(file, sizeof(struct shared_clock)) == 0);
    close(file);
}

void clock_open(struct test_clock *clock, const char *path)
{
    int file = open(path, O_RDWR);
    CHECK(file >= 0);
    void *shared = mmap(NULL, sizeof(struct shared_clock), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED);
    close(file);
    *clock = (struct test_clock){.shared = shared};
    clock->process = atomic_fetch_add(&clock->shared->processes, 1);
}

static void publish_waiting_ranks(struct test_clock *clock)
{
    for (int rank = 0; rank < CLOCK_RANKS; rank++) {
        if (!atomic_load(&clock->entered[rank]))
            continue;
        struct watched *watched = &clock->pulses[rank].watched;
        pthread_mutex_lock(&watched->lock);
        bool waits = watched->who.waits[0] != 0;
        pthread_mutex_unlock(&watched->lock);
        atomic_store(&clock->shared->waits[rank], waits);
    }
}

static int64_t wait_for_check(void *context, pthread_cond_t *stopping, pthread_mutex_t *lock, int64_t ns)
{
    struct test_clock *clock = context;
    struct shared_clock *shared = clock->shared;
    struct timespec until;
    atomic_store(&shared->requested[clock->process], clock->checks + 1);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PAUSE_NS;
    until.tv_sec += until.tv_nsec / BILLION;
    until.tv_nsec %= BILLION;
    pthread_cond_timedwait(stopping, lock, &until);
    publish_waiting_ranks(clock);
    if (atomic_load(&shared->passed) <= clock->checks)
        return 0;
    clock->checks++;
    return atomic_load(&shared->late) ? 1000 * ns : ns;
}

struct watchdog_clock clock_of(struct test_clock *clock)
{
    return (struct watchdog_clock){.wait = wait_for_check, .context = clock};
}

void clock_enter(struct test_clock *clock, struct watchdog *dog, int rank)
{
    watchdog_enter(dog, &clock->pulses[rank]);
    atomic_store(&clock->entered[rank], dog != NULL);
}

void clock_leave(struct test_clock *clock, struct watchdog *dog, int rank)
{
    atomic_store(&clock->entered[rank], false); // read only while watched
    watchdog_leave(dog, &clock->pulses[rank]);
}

static void pause_thread(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS / 4}, NULL);
}

void clock_others_wait(struct test_clock *clock, int rank, int ranks)
{
    for (int other = 0; other < ranks; other++)
        while (other != rank && atomic_load(&clock->shared->waits[other]) == 0)
            pause_thread();
}

static bool all_have_checked(struct shared_clock *shared)
{
    int processes = atomic_load(&shared->processes), passed = atomic_load(&shared->passed);
    for (int process = 0; process < processes; process++)
        if (atomic_load(&shared->requested[process]) <= passed)
            return false;
    return true;
}

void clock_pass(struct test_clock *clock, int checks, bool late)
{
    struct shared_clock *shared = clock->shared;
    atomic_store(&shared->late, late);
    for (int check = 0; check < checks; check++) {
        atomic_fetch_add(&shared->passed, 1);
        while (!all_have_checked(shared))
            pause_thread();
    }
}

void clock_flow(struct test_clock *clock)
{
    atomic_store(&clock->shared->passed, FLOWS);
}
