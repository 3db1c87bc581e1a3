// SPDX-License-Identifier: Apache-2.0
/* State of the rotating buffers of ZeRO stages 2 and 3 (layers/parameters/layer_arena.h) before or after an
 * action: which slot is next, and the events after which it may be overwritten. Two equal actions that start
 * in the same state, except for the numbers of events, enqueue the same and end in the same state. */
#pragma once

#include "layers/parameters/layer_arena.h"
#include "planner/tape/tape_section.h"

/* The arenas of gathered weights and of gradients; {0} without arenas. */
struct arena_state {
    struct layer_arena arena[2];
};
struct arena_state arena_state_of(const struct weights *weights);

/* True if the states are equal except for the numbers of events. */
bool arena_state_equals(const struct arena_state *a, const struct arena_state *b);

/* Replaces events of `before` by those of `now`. False if one of them has no counterpart, or several. */
MUST_USE bool arena_state_events(const struct arena_state *before, const struct arena_state *now,
                                 struct event *events, int count);

/* Sets the arenas of the weights to their state after a repeated action. */
void arena_state_repeat(const struct weights *weights, const struct arena_state *before,
                        const struct arena_state *after, const struct tape_recorder *recorder,
                        const struct tape_section *section);
