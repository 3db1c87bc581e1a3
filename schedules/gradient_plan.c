// SPDX-License-Identifier: Apache-2.0
#include "schedules/gradient_plan.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Free buffers while the list is walked, in a queue: the buffer that has been free longest is reused
 * first. One buffer always stays in reserve, since the last message may still read it when the next action
 * starts. */
struct pool {
    int *queue; // each index is queued once per use
    int begin, end, made;
};

static int pool_acquire(struct pool *pool)
{
    return pool->end - pool->begin >= 2 ? pool->queue[pool->begin++] : pool->made++;
}

static void pool_release(struct pool *pool, int index)
{
    pool->queue[pool->end++] = index;
}

/* Walks the rank's list once. */
void gradient_plan_create(const struct schedule *schedule, int pp_rank, struct gradient_plan *out)
{
    const struct action_list *list = &schedule->ranks[pp_rank];
    int m = schedule->m;
    size_t cells = (size_t)schedule->chunks * (size_t)m;
    struct pool pool = {.queue = memory_zeroed(cells + 1, sizeof *pool.queue, "a plan of gradient buffers")};
    out->of = memory_zeroed(cells, sizeof *out->of, "a plan of gradient buffers");
    memset(out->of, 0xff, cells * sizeof *out->of);
    for (int i = 0; i < list->count; i++) {
        struct action action = list->actions[i];
        const struct action_traits *traits = action_traits(action.kind);
        int *cell =
            &out->of[schedule_chunk(schedule, action.stage, action.microbatch) * m + action.microbatch];
        if ((action.kind == RECV_GRADIENT || traits->backward_input) && *cell < 0)
            *cell = pool_acquire(&pool);
        if (action.kind == SEND_GRADIENT || (traits->backward_input && action.stage == 0))
            pool_release(&pool, *cell);
        bool passed_on = traits->backward_input && action.stage > 0 &&
                         schedule_rank(schedule, action.stage - 1, action.microbatch) == pp_rank;
        if (passed_on)
            out->of[schedule_chunk(schedule, action.stage - 1, action.microbatch) * m + action.microbatch] =
                *cell;
    }
    out->count = pool.made;
    free(pool.queue);
}

void gradient_plan_destroy(struct gradient_plan *plan)
{
    free(plan->of);
    *plan = (struct gradient_plan){0};
}
