// SPDX-License-Identifier: Apache-2.0
#include "planner/tape/tape_recorder.h"

#include "layers/parameters/gradients.h"
#include "layers/parameters/sharded.h"

enum { ARENAS = 2, SLOTS = 2 };

static void arenas_of(const struct weights *weights, struct layer_arena *out[ARENAS])
{
    out[0] = weights_arena(weights);
    out[1] = gradients_arena(weights->gradients);
}

struct arena_state arena_state_of(const struct weights *weights)
{
    struct arena_state state = {.arena = {{.slots = 0}}};
    struct layer_arena *arenas[ARENAS];
    arenas_of(weights, arenas);
    for (int a = 0; a < ARENAS; a++)
        if (arenas[a] != NULL)
            state.arena[a] = *arenas[a];
    return state;
}

static bool same_slot(const struct slot *a, const struct slot *b)
{
    return a->layer == b->layer && a->resident == b->resident && a->used == b->used &&
           a->filled.stream == b->filled.stream && a->released.stream == b->released.stream;
}

bool arena_state_equals(const struct arena_state *a, const struct arena_state *b)
{
    for (int i = 0; i < ARENAS; i++) {
        const struct layer_arena *x = &a->arena[i], *y = &b->arena[i];
        if (x->slots != y->slots || x->next != y->next)
            return false;
        for (int slot = 0; slot < x->slots; slot++)
            if (!same_slot(&x->slot[slot], &y->slot[slot]))
                return false;
    }
    return true;
}

static bool same_event(struct event a, struct event b)
{
    return a.stream == b.stream && a.at == b.at;
}

/* Counts the distinct counterparts of an event. */
static void find(struct event event, struct event before, struct event now, struct event *found, int *count)
{
    if (!same_event(event, before) || (*count > 0 && same_event(*found, now)))
        return;
    *found = now;
    ++*count;
}

static bool counterpart(const struct arena_state *before, const struct arena_state *now, struct event *event)
{
    struct event found = {.stream = NULL};
    int count = 0;
    for (int a = 0; a < ARENAS; a++)
        for (int s = 0; s < before->arena[a].slots; s++) {
            const struct slot *x = &before->arena[a].slot[s], *y = &now->arena[a].slot[s];
            find(*event, x->filled, y->filled, &found, &count);
            find(*event, x->released, y->released, &found, &count);
        }
    if (count == 1)
        *event = found;
    return count == 1;
}

bool arena_state_events(const struct arena_state *before, const struct arena_state *now, struct event *events,
                        int count)
{
    for (int i = 0; i < count; i++)
        if (!counterpart(before, now, &events[i]))
            return false;
    return true;
}

/* Returns the event after the repetition: of the section, or unchanged from before it. */
static struct event repeated(struct event event, struct event was, struct event now,
                             const struct tape_recorder *recorder, const struct tape_section *section)
{
    if (event.stream == NULL || tape_section_event(recorder, section, &event))
        return event;
    CHECK(same_event(event, was));
    return now;
}

void arena_state_repeat(const struct weights *weights, const struct arena_state *before,
                        const struct arena_state *after, const struct tape_recorder *recorder,
                        const struct tape_section *section)
{
    struct layer_arena *arenas[ARENAS];
    arenas_of(weights, arenas);
    for (int a = 0; a < ARENAS; a++)
        for (int s = 0; s < after->arena[a].slots; s++) {
            const struct slot *was = &before->arena[a].slot[s];
            struct slot *slot = &arenas[a]->slot[s];
            const struct slot now = *slot;
            *slot = after->arena[a].slot[s];
            slot->filled = repeated(slot->filled, was->filled, now.filled, recorder, section);
            slot->released = repeated(slot->released, was->released, now.released, recorder, section);
            arenas[a]->next = after->arena[a].next;
        }
}
