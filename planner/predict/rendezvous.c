// SPDX-License-Identifier: Apache-2.0
#include "planner/predict/lanes.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { INITIAL_CAPACITY = 16, COLLECTIVE = -1 };

struct series {
    const struct tape_group *group; // of one of the tapes
    int from, to;                   // world ranks; both COLLECTIVE for collectives
    int expected;
    struct rendezvous *list; // [capacity], from number 1
    int64_t capacity;
};

struct rendezvous_table {
    struct tape *const *tapes;
    int tape_count;
    struct series *series;
    int count, capacity;
};

struct rendezvous_table *rendezvous_table_create(struct tape *const *tapes, int count)
{
    struct rendezvous_table *table = memory_zeroed(1, sizeof *table, "a prediction");
    table->tapes = tapes;
    table->tape_count = count;
    return table;
}

void rendezvous_table_destroy(struct rendezvous_table *table)
{
    if (table == NULL)
        return;
    for (int i = 0; i < table->count; i++)
        free(table->series[i].list);
    free(table->series);
    free(table);
}

static bool same_group(const struct tape_group *a, const struct tape_group *b)
{
    return a == b || (a->size == b->size && strcmp(a->name, b->name) == 0 &&
                      memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0);
}

/* Whether this world rank has a tape and takes part. */
static bool takes_part(const struct series *series, int rank)
{
    if (series->from != COLLECTIVE)
        return rank == series->from || rank == series->to;
    for (int i = 0; i < series->group->size; i++)
        if (series->group->ranks[i] == rank)
            return true;
    return false;
}

int rendezvous_series(struct rendezvous_table *table, const struct tape *tape,
                      const struct tape_message *message)
{
    struct series new = {.group = &tape->groups[message->group], .from = COLLECTIVE, .to = COLLECTIVE};
    if (message->call == CALL_SEND || message->call == CALL_RECEIVE) {
        new.from = message->call == CALL_SEND ? tape->rank : message->peer;
        new.to = message->call == CALL_SEND ? message->peer : tape->rank;
    }
    for (int i = 0; i < table->count; i++) {
        const struct series *old = &table->series[i];
        if (old->from == new.from && old->to == new.to &&same_group(old->group, new.group))
            return i;
    }
    for (int i = 0; i < table->tape_count; i++)
        new.expected += takes_part(&new, table->tapes[i]->rank);
    if (table->count == table->capacity) {
        table->capacity = table->capacity > 0 ? 2 * table->capacity : INITIAL_CAPACITY;
        table->series =
            memory_resized(table->series, (size_t)table->capacity, sizeof *table->series, "a prediction");
    }
    table->series[table->count] = new;
    return table->count++;
}

static bool is_alone(const struct series *series)
{
    return series->expected == 1;
}

void rendezvous_reserve(struct rendezvous_table *table, int series, int64_t number)
{
    struct series *s = &table->series[series];
    if (is_alone(s) || number <= s->capacity)
        return;
    int64_t capacity = s->capacity > 0 ? s->capacity : INITIAL_CAPACITY;
    while (capacity < number)
        capacity *= 2;
    s->list = memory_resized(s->list, (size_t)capacity, sizeof *s->list, "a prediction");
    for (int64_t i = s->capacity; i < capacity; i++)
        s->list[i] = (struct rendezvous){.expected = s->expected};
    s->capacity = capacity;
}

struct rendezvous *rendezvous_at(const struct rendezvous_table *table, int series, int64_t number)
{
    const struct series *s = &table->series[series];
    return is_alone(s) ? NULL : &s->list[number - 1];
}
