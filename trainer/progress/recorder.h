// SPDX-License-Identifier: Apache-2.0
/* The flight recorder's observer (parallel/observe_world.h): each message of this rank, when it is enqueued,
 * becomes an entry of its progress (base/progress.h). The device adds the times when it starts and is
 * done. */
#pragma once

#include "parallel/observe_world.h"

struct message_recorder {
    int count;
    const struct comm *comm[PROGRESS_GROUPS]; // comms that have had a call
    int group[PROGRESS_GROUPS];               // their indices in struct progress
};

/* Attaches to the comms that this world creates from now on, if this thread publishes its progress. */
MUST_USE enum status message_recorder_attach(struct message_recorder *recorder, struct world *world);
