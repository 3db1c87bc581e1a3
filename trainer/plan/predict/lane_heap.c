// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/predict/lane_heap.h"

static bool is_before(const struct lane *a, const struct lane *b)
{
    return a->end_s < b->end_s || (!(a->end_s > b->end_s) && a->order < b->order);
}

static void place(struct predictor *p, struct lane *lane, int at)
{
    p->heap[at] = lane;
    lane->heap_at = at;
}

static void move_up(struct predictor *p, struct lane *lane, int at)
{
    while (at > 0 && is_before(lane, p->heap[(at - 1) / 2])) {
        place(p, p->heap[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    place(p, lane, at);
}

static void move_down(struct predictor *p, struct lane *lane, int at)
{
    for (;;) {
        int below = 2 * at + 1;
        if (below + 1 < p->busy && is_before(p->heap[below + 1], p->heap[below]))
            below++;
        if (below >= p->busy || !is_before(p->heap[below], lane))
            break;
        place(p, p->heap[below], at);
        at = below;
    }
    place(p, lane, at);
}

void lane_heap_push(struct predictor *predictor, struct lane *lane)
{
    move_up(predictor, lane, predictor->busy++);
}

struct lane *lane_heap_pop(struct predictor *predictor)
{
    struct lane *first = predictor->heap[0], *last = predictor->heap[--predictor->busy];
    if (predictor->busy > 0)
        move_down(predictor, last, 0);
    return first;
}

void lane_heap_update(struct predictor *predictor, struct lane *lane)
{
    move_up(predictor, lane, lane->heap_at);
    move_down(predictor, lane, lane->heap_at);
}
