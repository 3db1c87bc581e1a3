// SPDX-License-Identifier: Apache-2.0
/* Inserts the transfers, for all families.
 *
 * Every action takes one unit of time (or the times given to auto), so the lists define a start for every
 * action. A message becomes *one* event shared by its two ends, at the end of the action that produces it.
 * All computing actions (by start) and all messages (before the computing actions that start at the same
 * time) form one global order, and each rank's list is the subsequence of its events:
 *
 *     time            0          1                   2               3
 *     rank 0        0F0   0SEND_F0 0F1        0SEND_F1        0RECV_B0 0B0
 *     rank 1              1RECV_F0 1F0        1RECV_F1 1B0    1SEND_B0 1F1
 *
 * A SEND thus directly follows its producer, and a RECV precedes its consumer by as much as the message can
 * be early, so that the transfer overlaps other computation. (Delaying a message until just before it is
 * consumed saves no memory: the sender then holds it. It costs time, since a SEND after further actions waits
 * for them when actual times are not units.)
 *
 * Proof that this cannot deadlock even if every SEND and RECV blocks until its peer arrives: take the first
 * event of the global order that is not done. Everything before it is done, so each participating rank is at
 * it. A computing action has its inputs, since they were computed or received earlier in the order. A message
 * has both of its ends waiting. So it completes, and there is no first event that is not done. Both ends of
 * an edge list its messages in the global order, so one communicator per edge suffices.
 *
 * Caution: an overlapped pair is one event. No transfer may be inserted between its two actions. */
#include "schedules/edges.h"

#include "base/memory.h"
#include "schedules/families/family.h"
#include "schedules/simulate.h"

#include <stdlib.h>

struct event {
    double time;
    int from, to;           // ranks
    int producer, consumer; // stages
    int microbatch;
    bool gradient;
};

static size_t cell(const struct schedule *s, int stage, int microbatch)
{
    return (size_t)stage * (size_t)s->m + (size_t)microbatch;
}

/* Records when the activation (and the gradient) of each stage and microbatch is produced. */
static void record_ends(const struct schedule *s, const struct simulation *sim, double *const end[2])
{
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            const struct action_traits *traits = action_traits(a.kind);
            if (traits->forward || traits->backward_input)
                end[!traits->forward][cell(s, a.stage, a.microbatch)] = sim->times[sim->first[rank] + i].end;
        }
}

/* Messages of the same time are ordered in two rounds, by the parity of their lower rank: a chain of
 * neighbours that each wait for the previous one would block rank after rank. */
static int compare_events(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    int x_low = x->from < x->to ? x->from : x->to, y_low = y->from < y->to ? y->from : y->to;
    if (x_low % 2 != y_low % 2)
        return x_low % 2 - y_low % 2;
    if (x_low != y_low)
        return x_low < y_low ? -1 : 1;
    if (x->gradient != y->gradient)
        return x->gradient ? 1 : -1;
    if (x->consumer != y->consumer)
        return x->consumer < y->consumer ? -1 : 1;
    return x->microbatch < y->microbatch ? -1 : x->microbatch > y->microbatch ? 1 : 0;
}

static size_t find_events(const struct schedule *s, double *const end[2], struct event *events)
{
    size_t count = 0;
    for (int gradient = 0; gradient < 2; gradient++)
        for (int consumer = 0; consumer < s->stages; consumer++)
            for (int k = 0; k < s->m; k++) {
                if (!crosses_ranks(s, consumer, k, gradient != 0))
                    continue;
                int producer = stage_before(consumer, gradient != 0);
                events[count++] = (struct event){.time = end[gradient][cell(s, producer, k)],
                                                 .from = schedule_rank(s, producer, k),
                                                 .to = schedule_rank(s, consumer, k),
                                                 .producer = producer,
                                                 .consumer = consumer,
                                                 .microbatch = k,
                                                 .gradient = gradient != 0};
            }
    qsort(events, count, sizeof *events, compare_events);
    return count;
}

/* The new lists; the old ones are only read. */
struct merge {
    const struct schedule *s;
    const struct simulation *sim;
    struct action_list *lists; // [p]
    int *at;                   // [p] merged actions of the old list
};

static void append(struct merge *x, int rank, struct action action)
{
    action_list_add(&x->lists[rank], action);
}

/* Moves the actions that `rank` starts before `time`. */
static void merge_until(struct merge *x, int rank, double time)
{
    const struct action_list *old = &x->s->ranks[rank];
    for (; x->at[rank] < old->count; x->at[rank]++) {
        int i = x->at[rank];
        if (x->sim->times[x->sim->first[rank] + i].start >= time)
            return;
        append(x, rank, old->actions[i]);
    }
}

static void merge_events(struct merge *x, const struct event *events, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct event *e = &events[i];
        struct action send = {.kind = e->gradient ? SEND_GRADIENT : SEND_ACTIVATION,
                              .stage = e->producer,
                              .microbatch = e->microbatch,
                              .peer = e->to};
        struct action receive = {.kind = e->gradient ? RECV_GRADIENT : RECV_ACTIVATION,
                                 .stage = e->consumer,
                                 .microbatch = e->microbatch,
                                 .peer = e->from};
        merge_until(x, e->from, e->time);
        append(x, e->from, send);
        merge_until(x, e->to, e->time);
        append(x, e->to, receive);
    }
    for (int rank = 0; rank < x->s->p; rank++)
        merge_until(x, rank, x->sim->makespan + 1.0);
}

static void merge_into(struct schedule *s, const struct simulation *sim, const struct event *events,
                       size_t count)
{
    AUTO_FREE struct action_list *lists = memory_zeroed((size_t)s->p, sizeof *lists, "transfers");
    AUTO_FREE int *at = memory_zeroed((size_t)s->p, sizeof *at, "transfers");
    merge_events(&(struct merge){.s = s, .sim = sim, .lists = lists, .at = at}, events, count);
    for (int rank = 0; rank < s->p; rank++) {
        free(s->ranks[rank].actions);
        s->ranks[rank] = lists[rank];
    }
    s->has_transfers = true;
}

enum status schedule_add_transfers(struct schedule *schedule)
{
    static const struct cost_table units = {.chunk = {1.0, 1.0, 1.0}, .b = 0.5, .pair_overlap = 1.0};
    return schedule_add_transfers_by(schedule, &units);
}

enum status schedule_add_transfers_by(struct schedule *schedule, const struct cost_table *times)
{
    CHECK(!schedule->has_transfers);
    struct simulation *sim = NULL;
    TRY(simulate(schedule, times, NULL, &sim));

    const size_t cells = (size_t)schedule->stages * (size_t)schedule->m;
    AUTO_FREE struct event *events = memory_zeroed(2 * cells, sizeof *events, "the transfers of a schedule");
    AUTO_FREE double *ends = memory_zeroed(2 * cells, sizeof *ends, "the transfers of a schedule");
    double *const end[2] = {ends, ends + cells};
    record_ends(schedule, sim, end);
    merge_into(schedule, sim, events, find_events(schedule, end, events));
    simulation_destroy(sim);
    return OK;
}
