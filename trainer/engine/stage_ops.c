// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/stage_ops.h"

static enum status put(void *context)
{
    const struct stage_ops *ops = context;
    switch (ops->kind) {
    case FORWARD:
        return stage_forward(ops->stage, ops->pass);
    case BACKWARD:
        return stage_backward(ops->stage, ops->pass, ops->dx, ops->done);
    case BACKWARD_INPUT:
        return stage_backward_input(ops->stage, ops->pass, ops->dx);
    case BACKWARD_WEIGHT:
        return stage_backward_weight(ops->stage, ops->pass, ops->done);
    case RECV_ACTIVATION:
    case SEND_ACTIVATION:
    case RECV_GRADIENT:
    case SEND_GRADIENT:
    case ACTION_KIND_COUNT:
        break;
    }
    return fail(BAD_SCHEDULE, "action %d is not a compute action", (int)ops->kind);
}

enum status stage_layers_done(const struct stage *stage, struct layer_done done)
{
    for (int i = stage->count - 1; i >= 0; i--)
        TRY(done.call(done.context, stage->layers[i].layer));
    return OK;
}

enum status stage_ops_run(const struct stage_ops *ops, struct graph **graph)
{
    struct stage_ops quiet = *ops;
    if (graph == NULL || (ops->done.call != NULL && !ops->done_at_the_end))
        return put(&quiet);
    quiet.done = (struct layer_done){0};
    TRY(stream_replay(ops->pass->env->compute, graph, put, &quiet));
    return ops->done.call != NULL ? stage_layers_done(ops->stage, ops->done) : OK;
}
