// SPDX-License-Identifier: Apache-2.0
/* One action of a rank for one microbatch: "3F7" is the forward of stage 3 on microbatch 7. A schedule is a
 * list of actions per rank. The executor, checker, simulator and drawings iterate over it with one switch
 * over `kind` without default, so that the compiler reports places that miss a new kind.
 *
 * The stage of a transfer is a stage of the rank that lists it: 2SEND_F7 sends the activation of stage 2 to
 * stage 3, where the same message is 3RECV_F7; 3SEND_B7 matches 2RECV_B7. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

enum action_kind {
    FORWARD,
    BACKWARD,        // input and weight gradient together
    BACKWARD_INPUT,  // input gradient, needed by the previous stage
    BACKWARD_WEIGHT, // weight gradient, needed by no other stage
    SEND_ACTIVATION,
    RECV_ACTIVATION,
    SEND_GRADIENT,
    RECV_GRADIENT,
    ACTION_KIND_COUNT
};

/* Properties of a kind of action, defined only here. */
struct action_traits {
    const char *text;
    bool computes;        // occupies the rank
    bool forward;         // computes the activation of its stage
    bool backward_input;  // computes the input gradient of its stage
    bool backward_weight; // accumulates the weight gradient of its stage
    bool sends, receives; // a transfer, and its end
    bool gradient;        // of a transfer: carries a gradient, to the previous stage
};

struct action {
    enum action_kind kind;
    int stage;          // 0 .. stages-1, global index
    int microbatch;     // 0 .. m-1
    int peer;           // of a transfer: the pipeline rank at the other end; else -1
    bool overlaps_next; // runs concurrently with the next action of the list (DualPipe's pairs)
};

extern const struct action_traits action_traits_of_kind[ACTION_KIND_COUNT];

static inline const struct action_traits *action_traits(enum action_kind kind)
{
    CHECK(kind >= 0 && kind < ACTION_KIND_COUNT);
    return &action_traits_of_kind[kind];
}

/* "3F7", "2SEND_F7": stage, kind, microbatch. */
#define ACTION_CHARS 48
const char *action_text(struct action action, char out[ACTION_CHARS]);
