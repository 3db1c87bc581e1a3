// SPDX-License-Identifier: Apache-2.0
/* The monotonic clock: for durations, never for dates; and processor time. */
#pragma once

#include <stdint.h>

/* Time since some fixed point in the past, in nanoseconds and in seconds. */
int64_t clock_ns(void);
double clock_s(void);

/* Processor time of this thread, in nanoseconds: time in which it does not run is not counted. */
int64_t clock_thread_ns(void);
