// SPDX-License-Identifier: Apache-2.0
/* One thing that a rank does for one microbatch: "3F7" is the forward of stage 3 on microbatch 7.
 * A schedule is nothing but one list of these per rank; whoever runs, checks, times or draws a
 * schedule walks the list with one switch over `kind`, without default, so that a new kind is a
 * compile error wherever it was forgotten.
 *
 * The stage of a transfer is the stage of the rank that lists it: 2SEND_F7 hands the activation that
 * stage 2 made to stage 3, where the same message is called 3RECV_F7; 3SEND_B7 is met by 2RECV_B7. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

enum action_kind {
    FORWARD,
    BACKWARD,        // both halves at once
    BACKWARD_INPUT,  // the gradient that the stage before waits for
    BACKWARD_WEIGHT, // the gradient that nobody waits for
    SEND_ACTIVATION,
    RECV_ACTIVATION,
    SEND_GRADIENT,
    RECV_GRADIENT,
    ACTION_KIND_COUNT
};

/* What is known of a kind of action; nobody else repeats this. */
struct action_fact {
    const char *text;
    bool computes;        // takes the rank's time
    bool forwards;        // makes the activation of its stage
    bool backs_input;     // makes the gradient of its stage's input
    bool backs_weight;    // adds to the gradient of its stage's weights
    bool sends, receives; // a transfer, and which end of it
    bool gradient;        // of a transfer: it carries a gradient, so it goes to the stage before
};

struct action {
    enum action_kind kind;
    int stage;          // 0 .. stages-1, the global one
    int microbatch;     // 0 .. m-1
    int peer;           // of a transfer: the pipeline rank at its other end; else -1
    bool overlaps_next; // runs together with the following action of the list (DualPipe's pairs)
};

extern const struct action_fact action_facts[ACTION_KIND_COUNT];

static inline const struct action_fact *action_fact(enum action_kind kind)
{
    CHECK(kind >= 0 && kind < ACTION_KIND_COUNT);
    return &action_facts[kind];
}

/* "3F7", "2SEND_F7": stage, kind, microbatch. */
#define ACTION_CHARS 48
const char *action_text(struct action action, char out[ACTION_CHARS]);
