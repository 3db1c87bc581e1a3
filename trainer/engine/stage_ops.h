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
    struct tensor dx;       // for I and B
    struct layer_done done; // for W and B; {0}: no notification
    bool done_at_the_end;   // one notification for all layers at the end is enough
};

/* graph NULL: enqueues the ops. They are also enqueued if `done` must be notified after each layer: the
 * notification starts communication, which a graph replay would not do. */
MUST_USE enum status stage_ops_run(const struct stage_ops *ops, struct graph **graph);

/* Notifies `done` of every layer of the stage, in the order of a backward pass. */
MUST_USE enum status stage_layers_done(const struct stage *stage, struct layer_done done);
