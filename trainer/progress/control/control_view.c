// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/control/control_view.h"

#include <math.h>
#include <string.h>

/* A node whose connection has been closed for so long is gone: otherwise another of its processes would have
 * connected. */
static const int64_t gone_ns = INT64_C(5000000000);

/* Number of nodes that report to this one: the first node, or all others. */
static int nodes_of(const struct control *control)
{
    return control_is_remote(control) ? 1 : control_nodes(control);
}

static const struct control_node *node_of(const struct control *control, int index)
{
    return control_is_remote(control) ? control_first(control) : control_node(control, index);
}

static int64_t stalled_ns_of(const struct control *control, const struct control_node *node, int rank)
{
    const int64_t ns = node->ranks[rank].stalled_ns + node->silent_ns,
                  since_end_ns = control_since_end_ns(control);
    return ns < since_end_ns ? ns : since_end_ns;
}

static bool is_gone(const struct control_node *node)
{
    return node->file < 0 && node->count > 0 && node->silent_ns > gone_ns;
}

struct control_state control_summarize(const struct control *control)
{
    struct control_state state = {.min_stalled_ns = INT64_MAX};
    for (int n = 0; control_is_started(control) && n < nodes_of(control); n++) {
        const struct control_node *node = node_of(control, n);
        for (int r = 0; r < node->count; r++) {
            const struct control_rank *rank = &node->ranks[r];
            int64_t stalled_ns = stalled_ns_of(control, node, r);
            if (rank->head.longest_ns > state.longest_ns)
                state.longest_ns = rank->head.longest_ns;
            if (rank->head.state != PROGRESS_ACTIVE)
                continue;
            state.lost = state.lost || rank->lost != 0 || is_gone(node);
            state.max_stalled_ns = stalled_ns > state.max_stalled_ns ? stalled_ns : state.max_stalled_ns;
            state.min_stalled_ns = stalled_ns < state.min_stalled_ns ? stalled_ns : state.min_stalled_ns;
        }
    }
    return state;
}

int control_ranks(const struct control *control)
{
    int count = 0;
    for (int n = 0; control_is_started(control) && n < nodes_of(control); n++)
        count += node_of(control, n)->count;
    return count;
}

void control_fill(const struct control *control, struct hang_rank *out)
{
    for (int n = 0; control_is_started(control) && n < nodes_of(control); n++) {
        const struct control_node *node = node_of(control, n);
        for (int r = 0; r < node->count; r++, out++) {
            if (node->all != NULL) {
                *out = node->all[r];
                out->stalled_s = fmin(out->stalled_s, 1e-9 * (double)control_since_end_ns(control));
                continue;
            }
            memset(out, 0, sizeof *out);
            out->progress.head = node->ranks[r].head;
            out->progress.head.groups = 0;
            out->progress.head.messages = 0;
            out->stalled_s = 1e-9 * (double)stalled_ns_of(control, node, r);
            out->process = is_gone(node) ? PROCESS_IS_GONE : PROCESS_NODE_SILENT;
            memcpy(out->node, node->name, sizeof out->node);
        }
    }
}
