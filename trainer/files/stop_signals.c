// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/stop_signals.h"

#include <string.h>
#include <time.h>

/* Without those that are ignored, as SIGINT is in the background jobs of a script: blocked, they would
 * arrive. */
static sigset_t stops(void)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&set, numbers[i]);
    }
    return set;
}

void stop_signals_hold(struct stop_signals *out)
{
    const sigset_t set = stops();
    pthread_sigmask(SIG_BLOCK, &set, &out->before);
}

enum status stop_signals_check(void)
{
    const sigset_t set = stops();
    const struct timespec at_once = {0};
    const int number = sigtimedwait(&set, NULL, &at_once);
    return number > 0 ? fail(INTERRUPTED, "stopped by %s; nothing was kept", strsignal(number)) : OK;
}

void stop_signals_release(const struct stop_signals *held)
{
    pthread_sigmask(SIG_SETMASK, &held->before, NULL);
}
