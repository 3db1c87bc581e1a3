// SPDX-License-Identifier: Apache-2.0
/* Times of messages between the ranks of this machine, by call, size, and size of the group. On a CPU also
 * with several groups at the same time, with more ranks than cores, and between processes. */
#pragma once

#include "planner/profile/profile.h"

/* Adds samples to the tables of transfers, for 2, 4, ... up to `most_ranks` ranks of `transport`. On a CPU
 * also for processes, started by mpirun; prints the reason if that is not possible. Prints a line for each
 * number of ranks. */
MUST_USE enum status doctor_messages(const char *device, const char *transport, int most_ranks,
                                     struct cluster_profile *profile);

/* Raises the times of messages between ranks of a CPU to those of the copies that they make, at the latency
 * and bandwidth of the link, while as many ranks share a core as in the measurement. What a message adds to
 * an op is a difference of two times, which may vary by more than a short message takes. */
void doctor_raise_messages(struct cluster_profile *profile);

/* Measures messages between the processes that a launcher started; rank 0 prints them, for
 * doctor_messages(). */
MUST_USE enum status doctor_messages_of_processes(void);
