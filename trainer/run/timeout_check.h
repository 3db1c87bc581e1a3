// SPDX-License-Identifier: Apache-2.0
/* Refuses a resilience.heartbeat_timeout_seconds that is shorter than a rank computes without progress,
 * before step 0. What a rank computes is read from its tape, so it holds for every layout:
 *
 *     one rank            an action: no message interrupts it
 *     several, on a CPU   an op; or all ops of a step, divided by the parts into which its messages and
 *                         actions divide them, of which one is at least as long as the mean
 *     on GPUs             the same, but a message may also arrive during an op
 *
 * A run that would have worked is not refused. Without a profile, an op takes as long as its matmul at a rate
 * that no device reaches. A profile predicts the time of ops; it may be that of a slower device, but hardly
 * of one that is four times slower. The monitor looks at most 0.25 s apart, and counts whole polls: a second
 * in all. */
#pragma once

#include "trainer/plan/step_plan.h"

/* Seconds for which some rank computes without progress at least. op_s: of each op of the tape. */
double timeout_least_s(const struct tape *tape, const double *op_s, bool is_gpu);

/* BAD_RECIPE names the key, its value, and valid ones. Plans a rank, unless the timeout is longer than any
 * action can be; only the first process of a run needs to. */
MUST_USE enum status timeout_check(const struct run *run);
/* The same with the predictions of a plan that has a profile. */
MUST_USE enum status timeout_check_plan(const struct step_plan *plan);
