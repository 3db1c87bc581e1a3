// SPDX-License-Identifier: Apache-2.0
/* What F, I, W and B of a stage put on the compute stream, run or replayed (kernels/device.h): a microbatch
 * has its place for its tokens and losses, and a slot that the list assigns, so an action finds everything at
 * the addresses of the step before. A graph therefore belongs to a position in the list of actions. */
#pragma once

#include "layers/stage.h"
#include "schedules/action.h"

struct stage_ops {
    enum action_kind kind; // one that computes
    const struct stage *stage;
    const struct pass *pass;
    struct tensor dx;       // of I and B
    struct layer_done done; // of W and B; {0}: nobody is told
    bool done_at_the_end;   // nobody has use for being told of one layer before the others
};

/* graph NULL: the ops are run. Where `done` wants to be told of each layer at once, they are too, for it
 * starts messages by that, which a replay would not do. */
MUST_USE enum status stage_ops_run(const struct stage_ops *ops, struct graph **graph);

/* Every layer of the stage has its gradients: tells so in the order in which a backward pass does. */
MUST_USE enum status stage_layers_done(const struct stage *stage, struct layer_done done);
