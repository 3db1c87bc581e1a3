// SPDX-License-Identifier: Apache-2.0
#include "planner/predict/lanes.h"

static const double ROUNDING = 1e-9;

/* Returns the time of the ops without overlap. */
static double add_ops(const struct rank *rank, const struct predicted_span *span, struct critical_path *path)
{
    double alone_s = 0.0;
    for (int i = span->first; i < span->first + span->count; i++) {
        const struct lane_op *op = &rank->ops[rank->tape->lanes[span->lane].items[i].index];
        if (op->is_copy && span->lane != COMPUTE)
            path->transfer_s[GROUP_HOST] += op->run_s;
        else
            path->run_s[op->class] += op->run_s;
        path->run_s[COST_LAUNCH] += op->launch_s;
        alone_s += op->seconds;
    }
    return alone_s;
}

static void add_span(const struct rank *rank, const struct predicted_span *span, struct critical_path *path)
{
    const struct tape_item *last = &rank->tape->lanes[span->lane].items[span->first + span->count - 1];
    const double seconds = span->end_s - span->begin_s;
    if (last->kind == TAPE_OP) {
        const double slower_s = seconds - add_ops(rank, span, path);
        const double overlap_s = slower_s - span->shared_s - span->paused_s;
        path->run_s[COST_OVERLAP] += overlap_s > ROUNDING * seconds ? overlap_s : 0.0;
        path->run_s[COST_SHARED_CORES] += span->shared_s;
        path->transfer_s[span->moved] += span->paused_s;
    } else {
        path->transfer_s[rank->messages[last->index].group] += seconds;
    }
}

void critical_path_find(struct predictor *predictor)
{
    struct prediction *out = predictor->out;
    for (int i = out->last_span; i != NO_SPAN; i = out->spans[i].cause) {
        struct predicted_span *span = &out->spans[i];
        span->critical = true;
        out->ranks[span->rank].critical_s += span->end_s - span->begin_s;
        add_span(&predictor->ranks[span->rank], span, &out->path);
    }
}
