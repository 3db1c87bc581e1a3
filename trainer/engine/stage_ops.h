// SPDX-License-Identifier: Apache-2.0
/* Enqueues the ops of an F, I, W or B on the compute stream, or replays them as a graph (kernels/device.h). A
 * microbatch has fixed buffers for tokens and losses and a slot assigned by the list, so an action has the
 * same addresses in every step. A graph therefore belongs to a position in the list of actions. */
#pragma once

#include "layers/stage.h"
#include "schedules/action.h"

struct stage_ops {
    enum action_kind kind; // a compute action
    const struct stage *stage;
    const struct pass *pass;
    struct tensor dx; // for I and B
};

/* graph NULL: enqueues the ops. They are also enqueued if the gradients of a layer are reduced as soon as
 * they are finished: a graph replay would not start that communication. */
MUST_USE enum status stage_ops_run(const struct stage_ops *ops, struct graph **graph);
