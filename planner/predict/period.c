// SPDX-License-Identifier: Apache-2.0

#include "planner/predict/lanes.h"
#include "schedules/action.h"

#include <math.h>
#include <string.h>

enum step_phase period_phase(const struct tape_action *action)
{
    const struct scheduled_action *scheduled = &action->scheduled;
    if (strcmp(action->name, "optimizer") == 0)
        return PHASE_UPDATE;
    if (strcmp(action->name, "verdict") == 0)
        return PHASE_VERDICT;
    if (!scheduled->exists)
        return PHASE_BEFORE;
    return action_traits((enum action_kind)scheduled->kind)->backward_input ? PHASE_BACKWARD : PHASE_FORWARD;
}

void period_note(const struct lane *lane)
{
    struct rank_period *period = &lane->rank->period;
    const double seconds = lane->end_s - lane->began_s;
    const enum step_phase phase = lane->rank->phases[lane->items->items[lane->at].action];
    if (phase == PHASE_VERDICT)
        period->verdict_s += seconds;
    else
        period->ready_s = lane->end_s;
    if (phase == PHASE_BEFORE && !period->begun)
        period->before_s += seconds;
    if (phase != PHASE_BEFORE && !period->begun) {
        period->begun = true;
        period->begin_s = lane->began_s;
    }
    if (phase == PHASE_BACKWARD && !period->turned) {
        period->turned = true;
        period->turn_s = lane->began_s;
    }
}

bool period_has_verdict(const struct rank *rank)
{
    for (int i = 0; i < rank->tape->action_count; i++)
        if (rank->phases[i] == PHASE_VERDICT)
            return true;
    return false;
}

/* Takes the overlap from the time in which the rank waits at both ends of the step: the bubble, or messages
 * between stages. */
static void shorten(struct predicted_rank *rank, double overlap_s)
{
    const double bubble_s = fmin(rank->bubble_s, overlap_s);
    rank->bubble_s -= bubble_s;
    rank->exposed_s[GROUP_PP] -= overlap_s - bubble_s;
}

void period_find(struct predictor *predictor)
{
    struct prediction *out = predictor->out;
    double ready_s = 0.0, period_s = 0.0;
    for (int r = 0; r < predictor->count; r++) {
        const struct rank_period *rank = &predictor->ranks[r].period;
        if (!period_has_verdict(&predictor->ranks[r]))
            return;
        ready_s = fmax(ready_s, rank->ready_s);
        period_s = fmax(period_s, ready_s + rank->verdict_s - rank->begin_s + rank->before_s);
    }
    for (int r = 0; r < predictor->count; r++)
        if (predictor->ranks[r].period.turned)
            period_s = fmax(period_s, ready_s - predictor->ranks[r].period.turn_s);
    if (period_s >= out->step_s)
        return;
    out->overlap_s = out->step_s - period_s;
    out->step_s = period_s;
    for (int r = 0; r < predictor->count; r++)
        shorten(&out->ranks[r], out->overlap_s);
}
