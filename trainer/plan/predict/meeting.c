// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/predict/meeting.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 16, NOT_TWO = -1 };

struct series {
    const struct tape_group *group; // of one of the tapes
    int from, to;                   // world ranks; NOT_TWO: a collective
    int expected;
    struct meeting *list; // [capacity], of number 1 and up
    int64_t capacity;
};

struct meetings {
    struct tape *const *tapes;
    int tape_count;
    struct series *series;
    int count, capacity;
};

enum status meetings_create(struct tape *const *tapes, int count, struct meetings **out)
{
    struct meetings *m = calloc(1, sizeof *m);
    if (m == NULL)
        return fail(NO_MEMORY, "no memory for a prediction of %d ranks", count);
    m->tapes = tapes;
    m->tape_count = count;
    *out = m;
    return OK;
}

void meetings_destroy(struct meetings *meetings)
{
    if (meetings == NULL)
        return;
    for (int i = 0; i < meetings->count; i++)
        free(meetings->series[i].list);
    free(meetings->series);
    free(meetings);
}

static bool same_group(const struct tape_group *a, const struct tape_group *b)
{
    return a == b || (a->size == b->size && strcmp(a->name, b->name) == 0 &&
                      memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0);
}

/* Whether this world rank has a tape and takes part. */
static bool takes_part(const struct series *series, int rank)
{
    if (series->from != NOT_TWO)
        return rank == series->from || rank == series->to;
    for (int i = 0; i < series->group->size; i++)
        if (series->group->ranks[i] == rank)
            return true;
    return false;
}

int meetings_series(struct meetings *meetings, const struct tape *tape, const struct tape_message *message)
{
    struct series new = {.group = &tape->groups[message->group], .from = NOT_TWO, .to = NOT_TWO};
    if (message->call == CALL_SEND || message->call == CALL_RECEIVE) {
        new.from = message->call == CALL_SEND ? tape->rank : message->peer;
        new.to = message->call == CALL_SEND ? message->peer : tape->rank;
    }
    for (int i = 0; i < meetings->count; i++) {
        const struct series *old = &meetings->series[i];
        if (old->from == new.from && old->to == new.to &&same_group(old->group, new.group))
            return i;
    }
    for (int i = 0; i < meetings->tape_count; i++)
        new.expected += takes_part(&new, meetings->tapes[i]->rank);
    if (meetings->count == meetings->capacity) {
        int capacity = meetings->capacity > 0 ? 2 * meetings->capacity : FEW;
        struct series *larger = realloc(meetings->series, (size_t)capacity * sizeof *larger);
        if (larger == NULL)
            return -1;
        meetings->series = larger;
        meetings->capacity = capacity;
    }
    meetings->series[meetings->count] = new;
    return meetings->count++;
}

struct meeting *meeting_at(struct meetings *meetings, int series, int64_t number)
{
    struct series *s = &meetings->series[series];
    if (number > s->capacity) {
        int64_t capacity = s->capacity > 0 ? s->capacity : FEW;
        while (capacity < number)
            capacity *= 2;
        struct meeting *larger = realloc(s->list, (size_t)capacity * sizeof *larger);
        if (larger == NULL)
            return NULL;
        for (int64_t i = s->capacity; i < capacity; i++)
            larger[i] = (struct meeting){.expected = s->expected};
        s->list = larger;
        s->capacity = capacity;
    }
    return &s->list[number - 1];
}
