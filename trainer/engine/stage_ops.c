// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/stage_ops.h"

#include "layers/parameters/gradients.h"

static enum status put(void *context)
{
    const struct stage_ops *ops = context;
    switch (ops->kind) {
    case FORWARD:
        return stage_forward(ops->stage, ops->pass);
    case BACKWARD:
        return stage_backward(ops->stage, ops->pass, ops->dx);
    case BACKWARD_INPUT:
        return stage_backward_input(ops->stage, ops->pass, ops->dx);
    case BACKWARD_WEIGHT:
        return stage_backward_weight(ops->stage, ops->pass);
    case RECV_ACTIVATION:
    case SEND_ACTIVATION:
    case RECV_GRADIENT:
    case SEND_GRADIENT:
    case ACTION_KIND_COUNT:
        break;
    }
    return fail(BAD_SCHEDULE, "action %d is not a compute action", (int)ops->kind);
}

enum status stage_ops_run(const struct stage_ops *ops, struct graph **graph)
{
    const struct layer_context *context = ops->pass->context;
    bool adds = action_traits(ops->kind)->backward_weight, is_last = adds && ops->pass->is_last;
    struct stage_ops captured = *ops;
    struct pass pass = *ops->pass;
    if (graph == NULL || (adds && gradients_communicates(context->weights->gradients, is_last)))
        return put(&captured);
    captured.pass = &pass;
    pass.is_last = false; // a replay does not repeat calls on the host
    TRY(stream_replay(context->compute, graph, put, &captured));
    return is_last ? stage_mark_gradients_ready(ops->stage) : OK;
}
