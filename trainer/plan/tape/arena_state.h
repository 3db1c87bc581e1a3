// SPDX-License-Identifier: Apache-2.0
/* The rotating buffers of ZeRO stages 2 and 3 (layers/parameters/layer_arena.h) around an action: which slot
 * is next, and the events after which it may be overwritten. An action that finds them in the state of an
 * earlier one, but for the numbers of events, enqueues the same, and leaves the same state. */
#pragma once

#include "layers/parameters/layer_arena.h"
#include "trainer/plan/tape/tape_section.h"

/* Of gathered weights and of gradients; {0} without. */
struct arena_state {
    struct layer_arena arena[2];
};
struct arena_state arena_state_of(const struct weights *weights);

/* True if they differ in the numbers of events at most. */
bool arena_state_equals(const struct arena_state *a, const struct arena_state *b);

/* Replaces events of `before` by those of `now`. False if one of them has no counterpart, or several. */
MUST_USE bool arena_state_events(const struct arena_state *before, const struct arena_state *now,
                                 struct event *events, int count);

/* Puts the weights into the state after a repeated action. */
void arena_state_repeat(const struct weights *weights, const struct arena_state *before,
                        const struct arena_state *after, const struct tape_recorder *recorder,
                        const struct tape_section *section);
