// SPDX-License-Identifier: Apache-2.0
/* SIGINT and SIGTERM while a command writes files. They are blocked and polled, so that the command removes
 * its incomplete files without a signal handler, which would need a global variable.
 *
 *     struct stop_signals held;
 *     stop_signals_hold(&held);
 *     while (status == OK && ...)
 *         status = stop_signals_check();      INTERRUPTED: "stopped by Terminated; nothing was kept"
 *     ... remove the incomplete files ...
 *     stop_signals_release(&held);
 *
 * A signal that is ignored stays so. Threads that are created between the two calls block the signals,
 * too. */
#pragma once

#include "base/status.h"

#include <signal.h>

struct stop_signals {
    sigset_t before; // the blocked signals of the thread
};

void stop_signals_hold(struct stop_signals *out);
/* INTERRUPTED if a signal has arrived. OK at all times in a process that does not hold them. */
MUST_USE enum status stop_signals_check(void);
void stop_signals_release(const struct stop_signals *held);
