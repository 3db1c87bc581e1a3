// SPDX-License-Identifier: Apache-2.0
/* Look-ahead of optimizer post-validation (post_validation.h): the actions of a step that ranks may run
 * before the previous step is validated. These are the longest prefixes of their lists that contain only
 * forwards and their transfers, and both ends of every message. 1F1B on three ranks:
 *
 *     rank 0:  F0 SEND0        F1 SEND1        F2 | SEND2 ...
 *     rank 1:     RECV0        F0 SEND0 RECV1  F1 | SEND1 ...
 *     rank 2:                     RECV0        F0 | B0 ...
 *
 * No message is unmatched at the end of the prefixes. They can therefore be discarded and rerun without
 * draining messages, and without knowledge of other ranks.
 *
 * Caution: stopping before the first backward is not sufficient. Rank 1 would have sent F1, which rank 2
 * receives only after its first backward. */
#pragma once

#include "schedules/schedule.h"

/* count[p]: length of the prefix of each rank, for a schedule with transfers. May be 0. */
void schedule_look_ahead(const struct schedule *schedule, int *count);
