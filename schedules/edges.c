// SPDX-License-Identifier: Apache-2.0
#include "schedules/edges.h"

#include "base/memory.h"

#include <stdlib.h>

static int compare_edges(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    if (x->gradient != y->gradient)
        return x->gradient ? 1 : -1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to ? 1 : 0;
}

/* Finds the edge into `stage`; returns false if its input comes from the same rank or does not exist. */
static bool edge_into(const struct schedule *s, bool gradient, int direction, int stage, struct edge *out)
{
    int microbatch = direction == 0 ? 0 : s->second_from;
    if (!crosses_ranks(s, stage, microbatch, gradient))
        return false;
    *out = (struct edge){.from = schedule_rank(s, stage_before(stage, gradient), microbatch),
                         .to = schedule_rank(s, stage, microbatch),
                         .gradient = gradient};
    return true;
}

static void number_edges(const struct schedule *s, struct edges *e)
{
    struct edge edge;
    int found = 0;
    for (int gradient = 0; gradient < 2; gradient++)
        for (int direction = 0; direction < 2; direction++)
            for (int stage = 0; stage < s->stages; stage++)
                if (edge_into(s, gradient != 0, direction, stage, &edge))
                    e->edge[found++] = edge;

    // Sort equal edges next to each other and keep one of each.
    qsort(e->edge, (size_t)found, sizeof *e->edge, compare_edges);
    for (int i = 0; i < found; i++)
        if (e->count == 0 || compare_edges(&e->edge[e->count - 1], &e->edge[i]) != 0)
            e->edge[e->count++] = e->edge[i];

    for (int gradient = 0; gradient < 2; gradient++)
        for (int direction = 0; direction < 2; direction++)
            for (int stage = 0; stage < s->stages; stage++) {
                const struct edge *at = NULL;
                if (edge_into(s, gradient != 0, direction, stage, &edge))
                    at = bsearch(&edge, e->edge, (size_t)e->count, sizeof *e->edge, compare_edges);
                e->into[gradient][direction][stage] = at == NULL ? -1 : (int)(at - e->edge);
            }
}

struct edges *edges_create(const struct schedule *schedule)
{
    struct edges *e = memory_zeroed(1, sizeof *e, "the edges of a schedule");
    e->edge = memory_zeroed(4 * (size_t)schedule->stages, sizeof *e->edge, "the edges of a schedule");
    for (int i = 0; i < 4; i++)
        e->into[i / 2][i % 2] =
            memory_zeroed((size_t)schedule->stages, sizeof(int), "the edges of a schedule");
    number_edges(schedule, e);
    return e;
}

void edges_destroy(struct edges *edges)
{
    if (edges == NULL)
        return;
    free(edges->edge);
    for (int i = 0; i < 4; i++)
        free(edges->into[i / 2][i % 2]);
    free(edges);
}

int edge_of(const struct edges *edges, const struct schedule *schedule, struct action transfer)
{
    int receiver = transfer_receiver(transfer);
    if (receiver < 0 || receiver >= schedule->stages)
        return -1;
    return edges->into[action_traits(transfer.kind)->gradient]
                      [schedule_direction(schedule, transfer.microbatch)][receiver];
}
