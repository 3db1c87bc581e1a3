// SPDX-License-Identifier: Apache-2.0
/* The monotonic clock: for durations, never for dates; and processor time. */
#pragma once

#include <stdint.h>

/* Time since some fixed point in the past, in nanoseconds and in seconds. */
int64_t clock_ns(void);
double clock_s(void);

/* Processor time of this thread, in nanoseconds: time in which it does not run is not counted. */
int64_t clock_thread_ns(void);

/* Time in which this thread was ready to run, but got no processor, in nanoseconds; -1: unknown. Reads a file
 * of the kernel: not for each op. */
int64_t clock_thread_ready_ns(void);
