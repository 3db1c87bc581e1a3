// SPDX-License-Identifier: Apache-2.0
#include "planner/predict/lanes.h"

static bool is_before(const struct heap_entry *a, const struct heap_entry *b)
{
    return a->end_s < b->end_s || (!(a->end_s > b->end_s) && a->lane->order < b->lane->order);
}

static void place(struct predictor *p, struct heap_entry entry, int at)
{
    p->heap[at] = entry;
    entry.lane->heap_at = at;
}

static void move_up(struct predictor *p, struct heap_entry entry, int at)
{
    while (at > 0 && is_before(&entry, &p->heap[(at - 1) / 2])) {
        place(p, p->heap[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    place(p, entry, at);
}

static void move_down(struct predictor *p, struct heap_entry entry, int at)
{
    for (;;) {
        int below = 2 * at + 1;
        if (below + 1 < p->busy && is_before(&p->heap[below + 1], &p->heap[below]))
            below++;
        if (below >= p->busy || !is_before(&p->heap[below], &entry))
            break;
        place(p, p->heap[below], at);
        at = below;
    }
    place(p, entry, at);
}

static struct heap_entry entry_of(struct lane *lane)
{
    return (struct heap_entry){.end_s = lane->end_s, .lane = lane};
}

void lane_heap_push(struct predictor *predictor, struct lane *lane)
{
    move_up(predictor, entry_of(lane), predictor->busy++);
}

struct lane *lane_heap_pop(struct predictor *predictor)
{
    struct lane *first = predictor->heap[0].lane;
    const struct heap_entry last = predictor->heap[--predictor->busy];
    if (predictor->busy > 0)
        move_down(predictor, last, 0);
    return first;
}

void lane_heap_update(struct predictor *predictor, struct lane *lane)
{
    move_up(predictor, entry_of(lane), lane->heap_at);
    move_down(predictor, entry_of(lane), lane->heap_at);
}
