// SPDX-License-Identifier: Apache-2.0
/* How far the ranks may run into a step before it is certain that the step will be (post_validation.h): the
 * longest beginnings of their lists that hold forwards and their transfers only, and of every message both
 * ends. 1F1B on three ranks:
 *
 *     rank 0:  F0 SEND0        F1 SEND1        F2 | SEND2 ...
 *     rank 1:     RECV0        F0 SEND0 RECV1  F1 | SEND1 ...
 *     rank 2:                     RECV0        F0 | B0 ...
 *
 * Where a rank stops, no message of its is without a partner. So the beginnings can be thrown away and done
 * again: there is nothing to be drained, and no rank must know what another one has posted.
 *
 * The trap: the first backward alone is not the place to stop. Rank 1 would have sent F1, which rank 2 asks
 * for behind its first backward. */
#pragma once

#include "schedules/schedule.h"

/* count[p]: so many actions of each rank, for a schedule with transfers. 0 is possible. */
MUST_USE enum status schedule_look_ahead(const struct schedule *schedule, int *count);
