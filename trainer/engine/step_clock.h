// SPDX-License-Identifier: Apache-2.0
/* Times of the actions of a step on a device that executes them after they were enqueued: marks of time
 * around the ops of each action. The host never waits for them. The times of a step are read when the next
 * one has been enqueued, and travel with its statistics.
 *
 *     step 7   [begin] 0F0 [end] [begin] 0F1 [end] ...     marks of bank 1
 *     step 8   [begin] 0F0 [end] ...                       marks of bank 0; at its end bank 1 is read */
#pragma once

#include "schedules/schedule.h"
#include "trainer/trace/mark_clock.h"
#include "trainer/trace/stall_recorder.h"

/* Times of a step: seconds spent in F, B, I and W; the start of the first and the end of the last of these
 * actions. All 0 if they are unknown. */
struct step_times {
    double busy_s, first_start_s, last_end_s;
    double waited_s;    // of busy_s: for messages inside of actions
    int64_t compute_ns; // sum over stages and kinds of the fastest of these actions, without waits
};

struct step_clock;

/* *out is NULL on a device whose ops are complete when their calls return, and on one without a clock. */
MUST_USE enum status step_clock_create(struct device *device, const struct schedule *schedule, int pp_rank,
                                       struct step_clock **out);
void step_clock_destroy(struct step_clock *clock); // accepts NULL

/* Before and after the ops of the action at this position of the list. */
MUST_USE enum status step_clock_begin(struct step_clock *clock, int position, struct stream *stream);
MUST_USE enum status step_clock_end(struct step_clock *clock, int position, struct stream *stream);
/* All actions of a step are enqueued. */
void step_clock_end_step(struct step_clock *clock);

/* The times of the step before the one that was enqueued last; relative to its first action. */
struct step_times step_clock_previous(const struct step_clock *clock, const struct stall_recorder *stalls);
/* Writes the times of all actions of the last step to times[actions][2], in seconds on the host's clock. An
 * action without ops gets the end of the one before it. */
void step_clock_read(const struct step_clock *clock, const struct mark_clock *host, double *times);
