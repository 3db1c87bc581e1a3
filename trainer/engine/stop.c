// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/stop.h"

#include "base/memory.h"
#include "trainer/progress/monitor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static const struct {
    const char *name;
    int number;
} known[] = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT}, {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}};
enum { KNOWN = sizeof known / sizeof *known };

struct stop {
    pthread_t thread;
    int signals, wake;    // file descriptors
    bool is_rank_zero;    // prints for the job
    sigset_t save;        // signals that request a save
    atomic_int received;  // the first exit signal; 0: none
    atomic_int saves;     // number of save signals
    pthread_mutex_t lock; // held while a signal is read and handled; protects the members below
    bool training;
    int interrupts;          // number of SIGINT
    struct text checkpoint;  // empty: no checkpoint
    struct monitor *monitor; // NULL: none
};

static const char *name_of(int number)
{
    for (int i = 0; i < KNOWN; i++)
        if (known[i].number == number)
            return known[i].name;
    return "a signal";
}

/* Only one process reports a signal that all of them received. The launcher ends the job when the first
 * process exits, so the others wait one second for rank 0; they report only signals that were sent to
 * them alone. A signal from the launcher itself (mpirun ends a job because a rank failed) needs no report
 * from them. */
static void wait_for_rank_zero(const struct stop *stop, pid_t sender)
{
    if (stop->is_rank_zero)
        return;
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    if (sender == getppid())
        exit_silently(INTERRUPTED);
}

/* Called with the lock held, and does not release it: no rank may begin a step meanwhile. */
static _Noreturn void end_before_training(const struct stop *stop, int number, pid_t sender)
{
    bool saved = stop->checkpoint.length > 0;
    monitor_set_leaving(stop->monitor);
    wait_for_rank_zero(stop, sender);
    die_of(saved ? STOPPED : INTERRUPTED, "%s before the first step: nothing was trained; %s",
           name_of(number), saved ? stop->checkpoint.chars : "there is no checkpoint yet");
}

static _Noreturn void end_at_once(const struct stop *stop, pid_t sender)
{
    monitor_set_leaving(stop->monitor);
    wait_for_rank_zero(stop, sender);
    die_of(INTERRUPTED, "a second SIGINT: ended at once; steps after the last complete checkpoint are lost");
}

/* Called with the lock held. */
static void receive(struct stop *stop, int number, pid_t sender)
{
    if (!stop->training)
        end_before_training(stop, number, sender);
    int none = 0;
    AUTO(text) line = {0};
    if (atomic_compare_exchange_strong(&stop->received, &none, number)) {
        text_add(&line,
                 "%s: the running step is finished and saved, then the run stops; %s ends it at once\n",
                 name_of(number), number == SIGINT ? "a second SIGINT" : "SIGINT twice");
        if (stop->is_rank_zero && !monitor_has_reported(stop->monitor))
            (void)!write(STDERR_FILENO, line.chars, line.length);
    }
}

/* Handles the signals that have arrived. Called with the lock held, so that no signal is read but not yet
 * handled when stop_training() checks. */
static void receive_pending(struct stop *stop)
{
    struct signalfd_siginfo info;
    while (read(stop->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        const int number = (int)info.ssi_signo;
        if (sigismember(&stop->save, number) == 1) {
            atomic_fetch_add(&stop->saves, 1);
            continue;
        }
        stop->interrupts += number == SIGINT;
        if (stop->interrupts > 1)
            end_at_once(stop, (pid_t)info.ssi_pid);
        receive(stop, number, (pid_t)info.ssi_pid);
    }
}

static void *wait_for_signals(void *argument)
{
    struct stop *stop = argument;
    struct pollfd files[] = {{.fd = stop->signals, .events = POLLIN}, {.fd = stop->wake, .events = POLLIN}};
    while (poll(files, 2, -1) > 0 || errno == EINTR) {
        if (files[1].revents != 0)
            break;
        if (files[0].revents == 0)
            continue;
        pthread_mutex_lock(&stop->lock);
        receive_pending(stop);
        pthread_mutex_unlock(&stop->lock);
    }
    return NULL;
}

static void set_of(const struct recipe_names *names, sigset_t *out)
{
    sigemptyset(out);
    for (int i = 0; i < KNOWN && names == NULL; i++)
        sigaddset(out, known[i].number);
    for (size_t n = 0; names != NULL && n < names->count; n++)
        for (int i = 0; i < KNOWN; i++)
            if (strcmp(names->list[n], known[i].name) == 0)
                sigaddset(out, known[i].number);
}

/* Keeps the listed signals blocked and unblocks the others. */
static void block_only(const sigset_t *listed)
{
    sigset_t others;
    sigemptyset(&others);
    for (int i = 0; i < KNOWN; i++)
        if (sigismember(listed, known[i].number) == 0)
            sigaddset(&others, known[i].number);
    pthread_sigmask(SIG_BLOCK, listed, NULL);
    pthread_sigmask(SIG_UNBLOCK, &others, NULL);
}

enum status stop_create(const struct recipe_names *signals, const struct recipe_names *save,
                        bool is_rank_zero, struct stop **out)
{
    static const struct recipe_names none;
    sigset_t set, also;
    set_of(signals, &set);
    set_of(save != NULL ? save : &none, &also);
    for (int i = 0; i < KNOWN; i++)
        if (sigismember(&also, known[i].number) == 1)
            sigaddset(&set, known[i].number);
    block_only(&set);
    if (signals == NULL) { // these remain pending until the recipe tells what they mean
        sigdelset(&set, SIGUSR1);
        sigdelset(&set, SIGUSR2);
    }
    struct stop *stop = memory_zeroed(1, sizeof *stop, "the exit signals");
    CHECK(pthread_mutex_init(&stop->lock, NULL) == 0);
    stop->is_rank_zero = is_rank_zero;
    stop->save = also;
    stop->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int why = stop->signals >= 0 ? 0 : errno;
    stop->wake = eventfd(0, EFD_CLOEXEC);
    if (why == 0)
        why = stop->wake >= 0 ? pthread_create(&stop->thread, NULL, wait_for_signals, stop) : errno;
    if (why == 0) {
        *out = stop;
        return OK;
    }
    enum status status =
        fail(NO_MEMORY, "resilience.exit_signal: cannot start the signal thread: %s", strerror(why));
    if (stop->signals >= 0)
        close(stop->signals);
    if (stop->wake >= 0)
        close(stop->wake);
    pthread_mutex_destroy(&stop->lock);
    free(stop);
    return status;
}

void stop_destroy(struct stop *stop)
{
    if (stop == NULL)
        return;
    uint64_t one = 1;
    CHECK(write(stop->wake, &one, sizeof one) == (ssize_t)sizeof one);
    pthread_join(stop->thread, NULL);
    close(stop->signals);
    close(stop->wake);
    pthread_mutex_destroy(&stop->lock);
    text_free(&stop->checkpoint);
    free(stop);
}

void stop_set_checkpoint(struct stop *stop, const char *where)
{
    pthread_mutex_lock(&stop->lock);
    text_free(&stop->checkpoint);
    text_add(&stop->checkpoint, "%s", where);
    pthread_mutex_unlock(&stop->lock);
}

void stop_set_monitor(struct stop *stop, struct monitor *monitor)
{
    if (stop == NULL)
        return;
    pthread_mutex_lock(&stop->lock);
    stop->monitor = monitor;
    pthread_mutex_unlock(&stop->lock);
}

void stop_training(struct stop *stop)
{
    if (stop == NULL)
        return;
    pthread_mutex_lock(&stop->lock);
    if (!stop->training)
        receive_pending(stop); // they arrived before training, whenever the thread gets to read them
    stop->training = true;
    pthread_mutex_unlock(&stop->lock);
}

bool stop_requested(const struct stop *stop)
{
    return stop != NULL && atomic_load(&stop->received) != 0;
}

int stop_saves(const struct stop *stop)
{
    return stop != NULL ? atomic_load(&stop->saves) : 0;
}
