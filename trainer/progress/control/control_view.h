// SPDX-License-Identifier: Apache-2.0
/* The ranks of other nodes, as a judging process sees them through its control connections. */
#pragma once

#include "trainer/progress/control/control.h"

/* A summary of the ranks of other nodes. */
struct control_state {
    bool lost;              // a process, or a whole node, is gone
    int64_t max_stalled_ns; // the longest time without progress of any active rank
    int64_t min_stalled_ns; // the shortest; INT64_MAX without ranks
    int64_t longest_ns;     // the longest step, save or evaluation so far
};
struct control_state control_summarize(const struct control *control);

/* Number of ranks of other nodes. */
int control_ranks(const struct control *control);
/* Fills out[control_ranks()]. Ranks of a node that did not answer to control_collect() have no messages. */
void control_fill(const struct control *control, struct hang_rank *out);
