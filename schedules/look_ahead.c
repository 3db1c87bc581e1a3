// SPDX-License-Identifier: Apache-2.0
#include "schedules/look_ahead.h"

#include "schedules/edges.h"

#include <limits.h>
#include <stdlib.h>

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

static void note_ends(const struct schedule *s, const int *count, const struct ends *ends)
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

/* Truncates a rank before the first message whose other end is beyond its peer's end. Returns true if that is
 * earlier. */
static bool stop_before_open_message(const struct schedule *s, const struct ends *ends, int rank, int *count)
{
    for (int i = 0; i < count[rank]; i++) {
        struct action a = s->ranks[rank].actions[i];
        if (a.kind == FORWARD || ends->at[a.kind == SEND_ACTIVATION][cell(s, a)] < count[a.peer])
            continue;
        count[rank] = i;
        return true;
    }
    return false;
}

/* Fixed point from above: a truncated part belongs to no solution, so the result is the longest one. */
enum status schedule_look_ahead(const struct schedule *s, int *count)
{
    size_t cells = (size_t)s->stages * (size_t)s->m;
    struct ends ends = {{malloc(cells * sizeof(int)), malloc(cells * sizeof(int))}};
    enum status status = ends.at[0] != NULL && ends.at[1] != NULL
                             ? OK
                             : fail(NO_MEMORY, "no memory to look ahead in a schedule");
    if (status == OK) {
        for (int rank = 0; rank < s->p; rank++) {
            const struct action_list *list = &s->ranks[rank];
            count[rank] = 0;
            while (count[rank] < list->count && is_ahead(list->actions[count[rank]].kind))
                count[rank]++;
        }
        note_ends(s, count, &ends);
        for (bool changed = true; changed;) {
            changed = false;
            for (int rank = 0; rank < s->p; rank++)
                changed = stop_before_open_message(s, &ends, rank, count) || changed;
        }
    }
    free(ends.at[0]);
    free(ends.at[1]);
    return status;
}
