// SPDX-License-Identifier: Apache-2.0
/* Buffers for the gradients of a rank's stages (STAGE_GRADIENT). A buffer is in use from RECV_GRADIENT (or
 * from the I or B of the last stage), through I or B, which replaces the gradient of the output by that of
 * the input in place, to SEND_GRADIENT; if the previous stage is on the same rank, it is passed on to that
 * stage's I or B.
 *
 * Caution: a SEND_GRADIENT may still read its buffer after its place in the list. One free buffer therefore
 * stays in reserve, and the engine waits for the message before the buffer is written again. */
#pragma once

#include "schedules/schedule.h"

struct gradient_plan {
    int count; // buffers
    int *of;   // [chunks][m]: index of the buffer used by I or B of this chunk and microbatch
};

/* Computes the number of gradient buffers of one rank, and the assignment of actions to them. */
void gradient_plan_create(const struct schedule *schedule, int pp_rank, struct gradient_plan *out);
void gradient_plan_destroy(struct gradient_plan *plan);
