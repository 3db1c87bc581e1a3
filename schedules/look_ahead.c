// SPDX-License-Identifier: Apache-2.0
#include "schedules/look_ahead.h"

#include "base/memory.h"
#include "schedules/edges.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { BEYOND = INT_MAX }; // not among the first actions that are considered

/* List positions of the send and the receive of the activation for a stage and microbatch. */
struct ends {
    int *at[2]; // [receives][stages * m]
};

static bool is_ahead(enum action_kind kind)
{
    return kind == FORWARD || kind == SEND_ACTIVATION || kind == RECV_ACTIVATION;
}

static size_t cell(const struct schedule *s, struct action transfer)
{
    return (size_t)transfer_receiver(transfer) * (size_t)s->m + (size_t)transfer.microbatch;
}

static void record_ends(const struct schedule *s, const int *count, const struct ends *ends)
{
    for (size_t i = 0; i < (size_t)s->stages * (size_t)s->m; i++)
        ends->at[0][i] = ends->at[1][i] = BEYOND;
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < count[rank]; i++) {
            struct action a = s->ranks[rank].actions[i];
            if (a.kind != FORWARD)
                ends->at[a.kind == RECV_ACTIVATION][cell(s, a)] = i;
        }
}

static int other_end(const struct ends *ends, const struct schedule *s, struct action a)
{
    return a.kind == FORWARD ? 0 : ends->at[a.kind == SEND_ACTIVATION][cell(s, a)];
}

/* Truncates each rank before its first message whose other end is beyond the peer's first actions. */
static void stop_before_open_messages(const struct schedule *s, const struct ends *ends, int *count)
{
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < count[rank]; i++)
            if (other_end(ends, s, s->ranks[rank].actions[i]) == BEYOND)
                count[rank] = i; // ends the loop
}

/* The actions [count, seen) of a rank are truncated: so are their peers, before the messages' other ends.
 * Looks at each action once. Returns true if a peer is truncated. */
static bool truncate_peers(const struct schedule *s, const struct ends *ends, int rank, int *seen, int *count)
{
    bool changed = false;
    while (seen[rank] > count[rank]) {
        const struct action a = s->ranks[rank].actions[--seen[rank]];
        const int other = other_end(ends, s, a);
        if (a.kind == FORWARD || other >= count[a.peer])
            continue;
        count[a.peer] = other;
        changed = true;
    }
    return changed;
}

/* The first forward passes and their messages, of each rank. */
static void count_ahead(const struct schedule *s, int *count)
{
    for (int rank = 0; rank < s->p; rank++) {
        const struct action_list *list = &s->ranks[rank];
        count[rank] = 0;
        while (count[rank] < list->count && is_ahead(list->actions[count[rank]].kind))
            count[rank]++;
    }
}

/* Fixed point from above: a truncated part belongs to no solution, so the result is the longest one. */
void schedule_look_ahead(const struct schedule *schedule, int *count)
{
    const size_t cells = (size_t)schedule->stages * (size_t)schedule->m;
    AUTO_FREE int *at = memory_zeroed(2 * cells, sizeof *at, "looking ahead in a schedule");
    AUTO_FREE int *seen = memory_zeroed((size_t)schedule->p, sizeof *seen, "looking ahead in a schedule");
    struct ends ends = {{at, at + cells}};
    count_ahead(schedule, count);
    memcpy(seen, count, (size_t)schedule->p * sizeof *seen);
    record_ends(schedule, count, &ends);
    stop_before_open_messages(schedule, &ends, count);
    for (bool changed = true; changed;) {
        changed = false;
        for (int rank = 0; rank < schedule->p; rank++)
            changed = truncate_peers(schedule, &ends, rank, seen, count) || changed;
    }
}
