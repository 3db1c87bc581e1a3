// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/watchdog.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const double nanosecond = 1e-9;
static const double look_most_s = 1.0, look_least_s = 0.01; // poll interval
static const double grace_s = 1.0;                          // for the reports of other processes
static const double ended_s = 0.3;                          // a wait longer than any within a step

struct watchdog {
    struct watchdog_config config;
    pthread_t thread;
    pthread_mutex_t lock; // protects the members below
    pthread_cond_t stopping;
    bool stop;
    struct pulse *pulses;
    bool reported; // the end of the job was reported
    bool warned;   // the timeout was reported
};

/* Waits on the monotonic clock, which the condition variable uses too. */
static int64_t wait_monotonic(void *context, pthread_cond_t *stopping, pthread_mutex_t *lock, int64_t ns)
{
    enum { BILLION = 1000000000 };
    struct timespec begin, end, until;
    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int64_t until_ns = begin.tv_nsec + ns;
    until = (struct timespec){begin.tv_sec + until_ns / BILLION, until_ns % BILLION};
    pthread_cond_timedwait(stopping, lock, &until);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - begin.tv_sec) * (int64_t)BILLION + end.tv_nsec - begin.tv_nsec;
}

/* Returns the part of the elapsed nanoseconds that counts. */
static int64_t wait_for(struct watchdog *dog, int64_t ns)
{
    const struct watchdog_clock *clock = &dog->config.clock;
    int64_t passed = clock->wait(clock->context, &dog->stopping, &dog->lock, ns);
    return passed < ns ? passed : ns;
}

/* Reads the activity of one rank; returns the seconds since its last progress. `passed_ns`: since the last
 * poll. */
static double look(struct pulse *pulse, int64_t passed_ns, struct who *who)
{
    pthread_mutex_lock(&pulse->watched.lock);
    *who = pulse->watched.who;
    pulse->still_ns = pulse->seen == pulse->watched.progress ? pulse->still_ns + passed_ns : 0;
    pulse->seen = pulse->watched.progress;
    pthread_mutex_unlock(&pulse->watched.lock);
    return nanosecond * (double)pulse->still_ns;
}

/* The shortest time without progress of any rank in this process; negative if no rank is monitored. */
static double least_still(const struct watchdog *dog, int64_t passed_ns, bool *all_wait)
{
    double least = -1.0;
    *all_wait = true;
    for (struct pulse *p = dog->pulses; p != NULL; p = p->next) {
        struct who who;
        double still_s = look(p, passed_ns, &who);
        least = least < 0.0 ? still_s : fmin(least, still_s);
        *all_wait = *all_wait && who.waits[0] != 0;
    }
    return least;
}

/* One write per line, so that lines of different processes do not mix. */
static void tell(const struct watchdog *dog, const char *why)
{
    for (struct pulse *p = dog->pulses; p != NULL; p = p->next) {
        struct who who;
        char prefix[WHO_CHARS], line[2 * WHO_CHARS];
        double still_s = look(p, 0, &who);
        snprintf(line, sizeof line, "%s: no progress for %.1f s, waits for %s%s\n", who_text(&who, prefix),
                 still_s, who.waits[0] != 0 ? who.waits : "no message", why);
        fputs(line, stderr);
    }
}

/* Called with the lock held. */
static void look_at_all(struct watchdog *dog, int64_t passed_ns)
{
    bool all_wait;
    double still_s = least_still(dog, passed_ns, &all_wait), limit_s = dog->config.limit_s;
    if (still_s > ended_s && all_wait && !dog->reported && stop_came(dog->config.stop, SIGTERM)) {
        tell(dog, ", and the job is being ended");
        dog->reported = true;
    }
    bool over = limit_s > 0.0 && still_s > limit_s;
    if (over && !dog->warned)
        tell(dog, "");
    dog->warned = over;
    if (!over || still_s <= limit_s + grace_s)
        return;
    die(__FILE__, __LINE__, "watchdog",
        "no rank of this process has made progress for %.10g s (resilience.heartbeat_timeout_seconds)",
        limit_s);
}

static double seconds_between_looks(const struct watchdog_config *config)
{
    double look_s = config->limit_s > 0.0 ? config->limit_s / 8.0 : look_most_s;
    if (config->stop != NULL)
        look_s = fmin(look_s, ended_s / 6.0);
    return fmax(look_least_s, fmin(look_s, look_most_s));
}

static void *watch(void *argument)
{
    struct watchdog *dog = argument;
    int64_t between_ns = (int64_t)(seconds_between_looks(&dog->config) / nanosecond);
    pthread_mutex_lock(&dog->lock);
    while (!dog->stop) {
        int64_t passed_ns = wait_for(dog, between_ns);
        if (!dog->stop)
            look_at_all(dog, passed_ns);
    }
    pthread_mutex_unlock(&dog->lock);
    return NULL;
}

enum status watchdog_start(const struct watchdog_config *config, struct watchdog **out)
{
    *out = NULL;
    if (config->limit_s <= 0.0 && config->stop == NULL)
        return OK;
    struct watchdog *dog = calloc(1, sizeof *dog);
    if (dog == NULL)
        return fail(NO_MEMORY, "no memory for a watchdog");
    dog->config = *config;
    if (dog->config.clock.wait == NULL)
        dog->config.clock.wait = wait_monotonic;
    pthread_condattr_t clock;
    CHECK(pthread_condattr_init(&clock) == 0 && pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_mutex_init(&dog->lock, NULL) == 0 && pthread_cond_init(&dog->stopping, &clock) == 0);
    pthread_condattr_destroy(&clock);
    if (pthread_create(&dog->thread, NULL, watch, dog) != 0) {
        pthread_cond_destroy(&dog->stopping);
        pthread_mutex_destroy(&dog->lock);
        free(dog);
        return fail(NO_MEMORY, "cannot start the watchdog thread");
    }
    *out = dog;
    return OK;
}

void watchdog_stop(struct watchdog *dog)
{
    if (dog == NULL)
        return;
    pthread_mutex_lock(&dog->lock);
    dog->stop = true;
    pthread_cond_signal(&dog->stopping);
    pthread_mutex_unlock(&dog->lock);
    pthread_join(dog->thread, NULL);
    CHECK(dog->pulses == NULL);
    pthread_cond_destroy(&dog->stopping);
    pthread_mutex_destroy(&dog->lock);
    free(dog);
}

void watchdog_enter(struct watchdog *dog, struct pulse *pulse)
{
    if (dog == NULL)
        return;
    *pulse = (struct pulse){.rank = who_am_i()->rank};
    CHECK(pthread_mutex_init(&pulse->watched.lock, NULL) == 0);
    who_is_watched(&pulse->watched);
    pthread_mutex_lock(&dog->lock);
    struct pulse **at = &dog->pulses;
    while (*at != NULL && (*at)->rank < pulse->rank)
        at = &(*at)->next;
    pulse->next = *at;
    *at = pulse;
    pthread_mutex_unlock(&dog->lock);
}

void watchdog_leave(struct watchdog *dog, struct pulse *pulse)
{
    if (dog == NULL)
        return;
    pthread_mutex_lock(&dog->lock);
    struct pulse **at = &dog->pulses;
    while (*at != pulse)
        at = &(*at)->next;
    *at = pulse->next;
    // The other ranks may have waited for this one: restart their time.
    for (struct pulse *p = dog->pulses; p != NULL; p = p->next)
        p->still_ns = 0;
    pthread_mutex_unlock(&dog->lock);
    who_is_watched(NULL);
    pthread_mutex_destroy(&pulse->watched.lock);
}
